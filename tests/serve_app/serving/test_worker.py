import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.settings import ServingSettings
from ray_model_serving.model_class import BadModelClassError
from ray_model_serving.serving.worker import ModelWorker, create_model
from ray_model_serving.store import ModelStore, Snapshot
from ray_model_serving.store.errors import DirectoryNotFoundError
from ray_model_serving.store.locks import open_lock

IMPORTABLE = Path(__file__).parent / "importable"


@pytest.fixture
def make_worker(make_args, make_times_model, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(IMPORTABLE))

    def make(**changes):
        model = make_times_model(factor=5.0)
        args = make_args({**model.settings("/times"), **changes}, cache_root=str(tmp_path / "cache"))
        settings = ServingSettings.from_mapping(args)
        served = create_model(settings.models[0])
        return ModelWorker(settings, settings.models[0], served)

    yield make
    sys.modules.pop("serving_fakes", None)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("no_such_module:Model", "can't be imported: No module named 'no_such_module'"),
        ("json:NoSuchClass", "can't be imported"),
        ("json:JSONDecoder", "is not a subclass of ServedModel"),
        ("json:dumps", "is not a subclass of ServedModel"),
        ("ray_model_serving.model:ServedModel", "can't be created"),
    ],
)
def test_a_model_class_that_can_not_be_used_is_named(make_args, path, text):
    settings = ServingSettings.from_mapping(make_args({"model_class": path}))
    with pytest.raises(BadModelClassError) as caught:
        create_model(settings.models[0])
    assert path in str(caught.value)
    assert text in str(caught.value)


def test_a_model_is_loaded_warmed_up_and_asked_with_a_report_of_every_phase(make_worker):
    worker = make_worker()
    worker.load()
    worker.warm_up()
    assert worker.predict([1, 2]) == [5.0, 10.0]
    assert worker.phase is None
    assert set(worker.report["seconds"]) == {
        *("resolve", "wait", "download", "verify", "commit", "map", "convert", "transfer", "warm_up", "total")
    }
    assert worker.report["seconds"]["total"] > 0
    assert worker.report["memory"]["model_bytes"] == 4
    assert worker.report["snapshot_id"] == worker.snapshot_id


def test_a_failing_load_can_be_tried_again(make_worker, tmp_path):
    worker = make_worker(uri=f"file://{tmp_path}/missing/")
    for _ in range(2):
        with pytest.raises(DirectoryNotFoundError):
            worker.load()
    assert worker.report is None


def test_the_memory_that_a_model_takes_when_it_first_runs_is_reported_beside_the_loads(make_worker):
    worker = make_worker(model_class="serving_fakes:Hungry")
    worker.load()
    worker.warm_up()
    memory = worker.report["memory"]
    assert memory["peak_anon_bytes"] < 32 * 1024**2, "the load itself takes next to nothing"
    assert memory["warm_up_peak_anon_bytes"] > 32 * 1024**2, "and the first run takes what this model is made to take"


@pytest.mark.parametrize("step", ["build", "warm_up", "predict_batch"])
def test_a_model_class_that_exits_is_an_error_and_not_the_end_of_the_replica(make_worker, monkeypatch, step):
    worker = make_worker()
    served = type(worker._served)

    def leave(*_: object) -> None:
        raise SystemExit(3)

    def use() -> None:
        worker.load()
        worker.warm_up()
        worker.predict([1])

    monkeypatch.setattr(served, step, leave)
    with pytest.raises(ModelServingError, match=r"called sys\.exit\(3\)"):
        use()


def test_a_snapshot_that_vanishes_before_the_load_is_ensured_once_more(make_worker, monkeypatch, tmp_path):
    worker = make_worker()
    ensure, found = ModelStore.ensure, []

    def gone_at_first(self: ModelStore, uri: str, **options: Any) -> Snapshot:
        snapshot = ensure(self, uri, **options)
        found.append(snapshot if found else dataclasses.replace(snapshot, path=tmp_path / "gone"))
        return found[-1]

    monkeypatch.setattr(ModelStore, "ensure", gone_at_first)
    worker.load()
    assert len(found) == 2
    assert worker.report["path"] == str(found[1].path)


def test_every_setting_of_a_model_reaches_the_store_and_the_loader(make_worker, monkeypatch, tmp_path):
    given: dict[str, Any] = {}

    class Store:
        def __init__(self, root: Path, **options: object) -> None:
            given.update(options, root=root)

        def ensure(self, uri: str, **options: object) -> object:
            given.update(options, uri=uri)
            raise DirectoryNotFoundError("here the test ends")

    monkeypatch.setattr("ray_model_serving.serving.worker.ModelStore", Store)
    worker = make_worker(uri="s3://models/m/", snapshot_id="a" * 32, include=["*.json"], exclude=["x"])
    with pytest.raises(DirectoryNotFoundError):
        worker.load()
    expected = {"uri": "s3://models/m/", "snapshot_id": "a" * 32, "include": ("*.json",), "exclude": ("x",)}
    assert {name: given[name] for name in expected} == expected
    assert given["root"] == tmp_path / "cache"
    assert given["cache_budget_bytes"] == 1024**3
    assert 0 < given["deadline_s"] <= 60, "what the gate gives a load bounds its download too"


def test_a_closed_worker_holds_no_lock_of_its_snapshot(make_worker, bucket, s3, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    directory = make_worker()._model.uri.removeprefix("file://")
    files = {name: (Path(directory) / name).read_bytes() for name in ("model.safetensors",)}
    config = b"{}"
    worker = make_worker(uri=bucket.put({**files, "config.json": config}))
    worker.load()
    worker.warm_up()
    lock = tmp_path / "cache" / "locks" / str(worker.snapshot_id)
    held = open_lock(lock)
    assert not held.try_exclusive(), "nobody may evict what a model maps"
    worker.close()
    worker.close()
    assert held.try_exclusive()
    held.release()
    assert worker.snapshot_id is None


def test_giving_device_memory_back_on_the_cpu_is_nothing_to_do(make_worker, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: pytest.fail("there is no CUDA device"))
    make_worker().free()
