"""The examples that model engineers copy: each deployed as its file says, each answer computed a second time."""

import importlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import yaml
from onnx.reference import ReferenceEvaluator
from safetensors.torch import load_file

from demo.reference import largest_difference, reference_vectors
from ray_model_serving.app import build
from ray_model_serving.contract.settings import ServingSettings
from ray_model_serving.model_class import new_model

EXAMPLES = Path(__file__).parents[3] / "serve_app" / "examples"
FOLDERS = ("text_embedding", "language_model", "onnx_model", "several_models")
WRITTEN_ROOT = "/tmp/ray-model-examples"


@dataclass(frozen=True)
class Deployed:
    root: Path
    prefixes: dict[str, str]
    applications: dict[str, dict[str, Any]]


def application(folder: str, root: Path) -> dict[str, Any]:
    """What the example's file says, with the files of the test's own."""
    text = (EXAMPLES / folder / "application.yaml").read_text()
    (found,) = yaml.safe_load(text.replace(WRITTEN_ROOT, str(root)))["applications"]
    return found


@pytest.fixture(scope="module")
def deployed(running_serve, tmp_path_factory) -> Iterator[Deployed]:
    from ray import serve

    root = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        for folder in FOLDERS[:3]:
            importlib.import_module(f"{folder}.make_model").make(root / folder)
    prefixes, targets, applications = {}, [], {}
    for folder in FOLDERS:
        found = applications[folder] = application(folder, root)
        prefix = prefixes[folder] = running_serve.unique_route()
        for model in found["args"]["models"]:
            model["route"] = prefix + model["route"]
        targets.append(serve.RunTarget(build(found["args"]), name=prefix.strip("/"), route_prefix=prefix))
    serve.run_many(targets)
    yield Deployed(root, prefixes, applications)
    for prefix in prefixes.values():
        running_serve.delete(prefix)


@pytest.fixture
def ask(running_serve, deployed):
    def send(folder: str, route: str, inputs: list[Any]) -> list[Any]:
        with running_serve.client() as http:
            answer = http.post(deployed.prefixes[folder] + route, json={"inputs": inputs})
        assert answer.status_code == 200, answer.text
        return answer.json()["outputs"]

    return send


def continued(root: Path, text: str, count: int) -> str:
    """Greedy continuation on the same weights, one text at a time, with attention and norms written out."""
    weights = load_file(root / "language_model" / "model.safetensors")
    config = json.loads((root / "language_model" / "config.json").read_text())

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        scaled = centred / (centred.pow(2).mean(dim=-1, keepdim=True) + 1e-5).sqrt()
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    tokens = list(text.encode())
    for _ in range(count):
        length = len(tokens)
        hidden = weights["tokens.weight"][tokens] + weights["positions.weight"][:length]
        for number in range(config["layers"]):
            layer, mixed = f"layers.{number}", []
            query, key, value = linear(norm(hidden, f"{layer}.norm_1"), f"{layer}.mix").split(config["size"], dim=1)
            width = config["size"] // config["heads"]
            for head in range(config["heads"]):
                part = slice(head * width, (head + 1) * width)
                scores = query[:, part] @ key[:, part].T / math.sqrt(width)
                scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
                mixed.append(scores.softmax(dim=1) @ value[:, part])
            hidden = hidden + linear(torch.cat(mixed, dim=1), f"{layer}.out")
            wide = linear(norm(hidden, f"{layer}.norm_2"), f"{layer}.wide")
            hidden = hidden + linear(wide * 0.5 * (1 + torch.erf(wide / math.sqrt(2))), f"{layer}.narrow")
        tokens.append(int((norm(hidden, "norm")[-1] @ weights["tokens.weight"].T).argmax()))
    return bytes(tokens[-count:]).decode("latin-1")


def test_the_text_embedding_agrees_with_sentence_transformers(ask, deployed):
    texts = ["A sentence of ordinary length.", "Kurz.", "日本語"]
    theirs = reference_vectors(deployed.root / "text_embedding", texts)
    assert largest_difference(ask("text_embedding", "/embed", texts), theirs) < 1e-4


@pytest.mark.parametrize("folder", ["language_model", "several_models"])
def test_the_language_model_agrees_with_attention_written_out(folder, ask, deployed):
    texts = ["Once upon a time", "a", "größer", "x" * 56]
    expected = [continued(deployed.root, text, 8) for text in texts]
    assert ask(folder, "/continue", texts) == expected
    assert len(set(expected)) == len(texts), "weights that always say the same would prove nothing"


@pytest.mark.parametrize("folder", ["onnx_model", "several_models"])
def test_the_onnx_model_agrees_with_onnx_own_evaluator(folder, ask, deployed):
    flowers = [[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]]
    model = onnx.load(deployed.root / "onnx_model" / "model.onnx")
    (expected,) = ReferenceEvaluator(model).run(None, {"measures": np.array(flowers, np.float32)})  # pyright: ignore[reportGeneralTypeIssues]
    answers = ask(folder, "/flowers", flowers)
    assert [list(answer) for answer in answers] == [["setosa", "versicolor", "virginica"]] * 2
    assert np.abs(np.array([list(answer.values()) for answer in answers]) - np.asarray(expected)).max() < 1e-5


def test_every_example_is_ready_for_the_warm_up_gate_and_refuses_what_its_class_refuses(deployed, running_serve):
    bad = {"embed": 7, "continue": "", "flowers": [1, 2, "x", 4]}
    with running_serve.client() as http:
        for folder, found in deployed.applications.items():
            for model in ServingSettings.from_mapping(found["args"]).models:
                refused = http.post(model.route, json={"inputs": [bad[model.name]]})
                assert refused.status_code == 422, refused.text
                reached = http.post(f"{model.route}/warmup").json()
                assert reached["example_inputs"], f"{folder}: ray-model warmup would send no real request"
                answer = http.post(model.route, json={"inputs": reached["example_inputs"]})
                assert answer.status_code == 200, answer.text


def test_the_readme_names_every_example():
    readme = (EXAMPLES / "README.md").read_text()
    folders = {path.parent.name for path in EXAMPLES.glob("*/application.yaml")}
    assert folders == set(FOLDERS)
    assert all(f"| `{folder}` |" in readme for folder in folders)


@pytest.mark.parametrize(
    ("value", "said"), [("", "not empty"), ("\ud800", "Unicode"), ("x" * 57, "57 bytes"), (3, "a text")]
)
def test_the_language_model_says_what_is_wrong_with_an_input(value, said, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    problem = new_model("language_model.model:LanguageModel").problem_with(value)
    assert problem is not None
    assert said in problem
