"""Sentence embeddings from a BERT encoder, such as all-MiniLM-L6-v2: text in, a unit vector out."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from ray_model_serving.model import ServedModel
from ray_model_serving.models.bert import BertConfig, BertEncoder, UnsupportedModelError


class TextEmbedding(ServedModel):
    """Mean of the token vectors, scaled to length 1. Longer texts are cut at the model's ``max_seq_length``."""

    # The checkpoint's classifier head, and numbers that the encoder computes.
    ignore_keys = ("pooler.*", "embeddings.position_ids")

    _tokenizer: Tokenizer
    _max_tokens: int

    def build(self, directory: Path) -> torch.nn.Module:
        config = BertConfig.read(directory / "config.json")
        self._max_tokens = min(_max_seq_length(directory / "sentence_bert_config.json"), config.max_position_embeddings)
        self._tokenizer = _read_tokenizer(directory / "tokenizer.json", self._max_tokens)
        return BertEncoder(config)

    def warm_up(self) -> None:
        self.predict_batch(["word " * self._max_tokens] * self.max_batch_size)

    def predict_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        encodings = self._tokenizer.encode_batch(list(inputs))
        device = next(self.module.parameters()).device
        token_ids = torch.tensor([encoding.ids for encoding in encodings], device=device)
        mask = torch.tensor([encoding.attention_mask for encoding in encodings], dtype=torch.bool, device=device)
        with torch.inference_mode():
            hidden = self.module(token_ids, mask).float()
            real = mask[:, :, None]
            mean = (hidden * real).sum(dim=1) / real.sum(dim=1)
            return torch.nn.functional.normalize(mean, dim=1).tolist()

    def example_inputs(self) -> Sequence[Any]:
        return ["A text to embed."]

    def problem_with(self, value: Any) -> str | None:
        if not isinstance(value, str):
            return f"must be text, got {type(value).__name__}"
        return None if _encodes(value) else "is not valid Unicode"


def _encodes(text: str) -> bool:
    # JSON can carry half of a surrogate pair, which the tokenizer can't take.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_tokenizer(path: Path, max_tokens: int) -> Tokenizer:
    if not path.is_file():
        raise UnsupportedModelError(f"{path} is missing, a text model needs its tokenizer beside the weights")
    tokenizer = Tokenizer.from_file(str(path))
    padding = tokenizer.padding or {"pad_id": 0, "pad_token": "[PAD]"}
    tokenizer.enable_truncation(max_tokens)
    # The file's own padding is to a fixed length; to the longest text of the batch is less work.
    tokenizer.enable_padding(pad_id=padding["pad_id"], pad_token=padding["pad_token"])
    return tokenizer


def _max_seq_length(path: Path) -> int:
    try:
        length = json.loads(path.read_text())["max_seq_length"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnsupportedModelError(f"{path} gives no max_seq_length: {error!r}") from error
    if not isinstance(length, int) or length < 1:
        raise UnsupportedModelError(f"{path}: max_seq_length is {length!r}, must be a whole number above 0")
    return length
