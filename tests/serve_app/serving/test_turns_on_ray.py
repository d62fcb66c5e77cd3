"""Whose turn it is to leave, on the real control plane and in real replicas."""

import itertools

import pytest
from ray import serve

from ray_model_serving.contract.settings import ServingSettings
from ray_model_serving.serving.lease import Lease
from ray_model_serving.serving.turns import GcsKeyValue, ReplicaTurn

names = (f"leave/test-{number}" for number in itertools.count())


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0.1})
class Asker:
    def __init__(self, settings: ServingSettings) -> None:
        self.turn = ReplicaTurn(settings, settings.models[0])
        self.replica = serve.get_replica_context().replica_id.unique_id

    def ask(self) -> tuple[str, bool]:
        return self.replica, self.turn.take()


@pytest.fixture
def lease_name(running_serve) -> str:
    return next(names)


def test_rays_store_gives_a_lease_to_one_and_the_next_when_its_time_is_over(lease_name):
    now = [1000.0]
    first, second = (Lease(GcsKeyValue(), lease_name, owner=o, lasts_s=60, now=lambda: now[0]) for o in "ab")
    assert (first.take(), second.take(), first.take()) == (True, False, True)
    now[0] += 61
    assert (second.take(), first.take()) == (True, False)
    second.give_back()
    assert first.take()
    assert len(GcsKeyValue().keys(lease_name)) == 1


def test_of_two_replicas_that_leak_one_may_leave(running_serve, make_args):
    route = running_serve.unique_route()
    settings = ServingSettings.from_mapping(make_args())
    name = route.strip("/")
    handle = serve.run(Asker.bind(settings), name=name, route_prefix=route)
    try:
        asked = [handle.ask.remote().result(timeout_s=20) for _ in range(20)]
    finally:
        running_serve.delete(route)
    assert len({replica for replica, _ in asked}) == 2
    assert len({replica for replica, may in asked if may}) == 1, "two at once would take all the capacity away"
