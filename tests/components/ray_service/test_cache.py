"""The model cache: one path for everyone, on the instance store or not at all."""

import dataclasses
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from eks_gpu_serving.nodes.operating_systems import OPERATING_SYSTEMS
from eks_gpu_serving.planning.capacity import CapacityPlan
from eks_gpu_serving.planning.plan import plan
from eks_gpu_serving.ray_service.manifest import ray_service
from eks_gpu_serving.ray_service.objects import prefetch_config_map
from eks_gpu_serving.ray_service.serve_config import serve_config
from eks_gpu_serving.settings import ApplicationSettings, StackSettings
from ray_model_serving.cli.prefetch_list import read_list
from ray_model_serving.contract.paths import CACHE_MOUNT_PATH, PREFETCH_LIST_DIRECTORY, PREFETCH_LIST_FILE


def workers(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    return [g["template"]["spec"] for g in manifest["spec"]["rayClusterConfig"]["workerGroupSpecs"]]


def volume_at(pod: dict[str, Any], container: dict[str, Any], path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    mount = next(m for m in container["volumeMounts"] if m["mountPath"] == path)
    return mount, next(v for v in pod["volumes"] if v["name"] == mount["name"])


def test_fetcher_server_and_application_use_one_cache_path(manifest: dict[str, Any]) -> None:  # UR-075
    args = yaml.safe_load(manifest["spec"]["serveConfigV2"])["applications"][0]["args"]
    assert args["cache_root"] == CACHE_MOUNT_PATH
    for pod in workers(manifest):
        prepare, prefetch = pod["initContainers"]
        mounts = [volume_at(pod, container, CACHE_MOUNT_PATH) for container in (prepare, prefetch, *pod["containers"])]
        assert all(found == mounts[0] for found in mounts), "another directory would be downloaded to for ever"
        assert f"--cache-dir {CACHE_MOUNT_PATH} " in prefetch["command"][-1]


def test_the_cache_lies_on_the_instance_store_or_the_pod_does_not_start(  # UR-075
    manifest: dict[str, Any], capacity: CapacityPlan
) -> None:
    for pool, pod in zip(capacity.pools, workers(manifest), strict=True):
        mount, volume = volume_at(pod, pod["containers"][0], CACHE_MOUNT_PATH)
        assert volume["hostPath"] == {
            "path": OPERATING_SYSTEMS[pool.operating_system].cache_host_path,
            "type": "Directory",
        }, "DirectoryOrCreate would put the cache on the root volume without a word"
        assert mount["subPath"], "the mount is shared with kubelet and containerd; the pod sees one directory of it"


def test_root_hands_over_the_directory_with_two_capabilities_and_no_recursion(  # UR-075
    manifest: dict[str, Any],
) -> None:
    for pod in workers(manifest):
        prepare = pod["initContainers"][0]
        context = prepare["securityContext"]
        assert (context["runAsUser"], context["allowPrivilegeEscalation"]) == (0, False)
        assert context["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN", "FOWNER"]}
        assert "-R" not in prepare["command"][-1], "a walk over terabytes at every start"
        owner = pod["containers"][0]["securityContext"]
        assert f"chown {owner['runAsUser']}:{owner['runAsGroup']} {CACHE_MOUNT_PATH}" in prepare["command"][-1]


def test_everything_else_runs_without_root_and_without_capabilities(manifest: dict[str, Any]) -> None:
    cluster = manifest["spec"]["rayClusterConfig"]
    head = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    contexts = [cluster["autoscalerOptions"]["securityContext"], *(c["securityContext"] for c in head)]
    for pod in workers(manifest):
        contexts += [c["securityContext"] for c in (pod["initContainers"][1], *pod["containers"])]
    for context in contexts:
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == 1000
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}


def test_a_prefetch_that_fails_or_hangs_does_not_keep_the_pod_from_starting(
    manifest: dict[str, Any], settings: StackSettings, capacity: CapacityPlan
) -> None:
    data = prefetch_config_map(settings, capacity)["data"]
    for pod in workers(manifest):
        command = pod["initContainers"][1]["command"][-1]
        _, volume = volume_at(pod, pod["initContainers"][1], PREFETCH_LIST_DIRECTORY)
        (item,) = (i for i in volume["configMap"]["items"] if i["path"] != PREFETCH_LIST_FILE)
        assert command.startswith(f'timeout "$(cat {PREFETCH_LIST_DIRECTORY}/{item["path"]})" ray-model fetch ')
        assert data[item["key"]] == f"{capacity.timeouts.prefetch_deadline_s:.0f}\n"
        assert " || echo " in command, "the replica fetches for itself, where its state can be seen"


@pytest.mark.parametrize(
    ("deadline", "program", "said"),
    [
        ("300\n", "exit 0", ""),
        ("300\n", "exit 1", "prefetch ended with status 1 "),
        ("0.1\n", "exec sleep 60", "prefetch ended with status 124 "),
        (None, "exit 0", "prefetch ended with status 125 "),
    ],
    ids=["fetched", "failed", "out of time", "no deadline"],
)
def test_the_command_of_a_prefetch_always_ends_well(
    deadline: str | None, program: str, said: str, tmp_path: Path, manifest: dict[str, Any]
) -> None:
    command = workers(manifest)[0]["initContainers"][1]["command"]
    fake = tmp_path / "ray-model"
    fake.write_text(f"#!/bin/sh\n{program}\n")
    fake.chmod(0o755)
    if deadline is not None:
        (tmp_path / "deadline_s").write_text(deadline)
    line = command[-1].replace(PREFETCH_LIST_DIRECTORY, str(tmp_path))
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run([*command[:-1], line], env={"PATH": path}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, "an init container that fails would restart for ever, unseen"
    assert done.stdout.startswith(said)
    assert bool(done.stdout) == bool(said)


def test_each_pool_fetches_its_own_models_and_only_those_in_s3(several: Callable[..., StackSettings]) -> None:
    settings = several()
    capacity = plan(settings)
    manifest = ray_service(settings, capacity, "")
    data = prefetch_config_map(settings, capacity)["data"]
    fetched: dict[str, list[str]] = {}
    for group, pod in zip(manifest["spec"]["rayClusterConfig"]["workerGroupSpecs"], workers(manifest), strict=True):
        _, volume = volume_at(pod, pod["initContainers"][1], PREFETCH_LIST_DIRECTORY)
        (item,) = (item for item in volume["configMap"]["items"] if item["path"] == PREFETCH_LIST_FILE)
        models = json.loads(data[item["key"]])["models"]
        assert all(set(model) == {"uri", "include", "exclude", "snapshot_id"} for model in models)
        fetched[group["groupName"]] = [model["uri"] for model in models]
    assert fetched == {"l40s": ["s3://models/chat/v3/"], "l4": ["s3://models/embed/v1/", "s3://models/embed-de/v2/"]}


VARIANTS = [
    {"name": "legal", "uri": "s3://models/legal/v1/", "snapshot_id": "1" * 32},
    {"name": "medical", "uri": "s3://models/medical/v1/", "snapshot_id": "2" * 32},
]


@pytest.mark.parametrize(
    "change",
    [
        {"uri": "s3://models/chat/v4/", "snapshot_id": "0" * 32},
        {"variants": [{**VARIANTS[0], "snapshot_id": "3" * 32}, VARIANTS[1]]},
        {"variants": [*VARIANTS, {"name": "new", "uri": "s3://models/new/", "snapshot_id": "4" * 32}]},
    ],
    ids=["a model", "a variant", "one variant more"],
)
def test_a_new_version_leaves_the_cluster_alone(several: Callable[..., StackSettings], change: dict[str, Any]) -> None:
    versions: list[tuple[dict[str, Any], dict[str, Any]]] = []
    resident = {"resident_gib": 48.0, "gpu_gib": 20.0}  # three variants of 16 GiB, on two GPUs
    for changed in ({}, change):
        settings = several(**{"variants": VARIANTS, **resident, **changed})
        # So slow that one variant more needs another deadline.
        settings = dataclasses.replace(settings, serving=ApplicationSettings(rate_cap_mib_per_s=100))
        capacity = plan(settings)
        config = serve_config(settings, capacity, model_role_arn=None)
        versions.append((ray_service(settings, capacity, config), prefetch_config_map(settings, capacity)))
    (before, list_before), (after, list_after) = versions
    cluster_before, cluster_after = (json.dumps(m["spec"].pop("rayClusterConfig")) for m in (before, after))
    assert cluster_before == cluster_after, "a changed cluster is a second cluster: twice the GPUs, every model again"
    assert before["spec"].pop("serveConfigV2") != after["spec"].pop("serveConfigV2")
    # How long an update may wait is not the cluster's: it grows with what is fetched.
    for manifest in (before, after):
        manifest["metadata"]["annotations"].pop("pulumi.com/timeoutSeconds")
    assert before == after
    assert list_before["metadata"] == list_after["metadata"]
    assert list_before["data"] != list_after["data"]


def test_what_is_listed_is_what_the_command_reads(small_stack: Any, tmp_path: Path) -> None:
    mapping = small_stack(model={"variants": VARIANTS}, serving={"rate_cap_mib_per_s": 100})
    mapping["models"].append({**mapping["models"][0], "name": "other", "route": "/other", "uri": "s3://models/other/"})
    for model in mapping["models"]:
        model.update(num_gpus=0.5, num_cpus=0.5)
    del mapping["models"][1]["variants"]
    settings = StackSettings.from_mapping(mapping)
    capacity = plan(settings)
    path = tmp_path / PREFETCH_LIST_FILE
    path.write_text(prefetch_config_map(settings, capacity)["data"]["l4.json"])
    listed = read_list(path)
    assert [(model.uri, model.snapshot_id) for model in listed.models] == [
        ("s3://models/embedding/", None),
        ("s3://models/other/", None),
        ("s3://models/legal/v1/", "1" * 32),
    ], "a replica holds one variant: the second is fetched when it is asked for, and no start waits for it"
    assert listed.connections == capacity.serving.connections
    assert listed.cache_budget_bytes == capacity.serving.cache_budget_bytes
    assert listed.rate_cap_bytes_per_s == capacity.serving.rate_cap_bytes_per_s == 100 * 1024**2
