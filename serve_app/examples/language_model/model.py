"""A causal language model over bytes: text in, the text that goes on from it out."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ray_model_serving.model import ServedModel

VOCABULARY = 256  # one token a byte
MOST_TOKENS = 64


class LanguageModel(ServedModel):
    """Greedy continuation by a fixed number of bytes. What the bytes of a batch cost is bounded by max_batch_cost."""

    NEW_TOKENS = 8

    def build(self, directory: Path) -> nn.Module:
        return Network(**json.loads((directory / "config.json").read_text()))

    def warm_up(self) -> None:
        self.predict_batch(["x" * (MOST_TOKENS - self.NEW_TOKENS)] * self.max_batch_size)

    def predict_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        texts = [list(text.encode()) for text in inputs]
        device = next(self.module.parameters()).device
        lengths = torch.tensor([len(text) for text in texts], device=device)
        rows = torch.arange(len(texts), device=device)
        tokens = torch.zeros(len(texts), int(lengths.max()) + self.NEW_TOKENS, dtype=torch.long, device=device)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = torch.tensor(text)
        with torch.inference_mode():
            for _ in range(self.NEW_TOKENS):
                # What is behind a text's end can't reach it: each token sees only those before it.
                logits = self.module(tokens)
                tokens[rows, lengths] = logits[rows, lengths - 1].argmax(dim=1)
                lengths += 1
        ends = lengths.tolist()
        # Latin-1 has a character for each byte; these weights know nothing of UTF-8.
        new = (bytes(row[end - self.NEW_TOKENS : end]) for row, end in zip(tokens.tolist(), ends, strict=True))
        return [part.decode("latin-1") for part in new]

    def problem_with(self, value: Any) -> str | None:
        if not isinstance(value, str) or not value:
            return "must be a text that is not empty"
        try:
            size = len(value.encode())
        except UnicodeEncodeError:  # half of a surrogate pair, which JSON can carry
            return "is not valid Unicode"
        longest = MOST_TOKENS - self.NEW_TOKENS
        return None if size <= longest else f"has {size} bytes, must have at most {longest}"

    def cost(self, value: Any) -> int:
        return len(value.encode()) + self.NEW_TOKENS

    def example_inputs(self) -> Sequence[Any]:
        return ["Once upon a time"]


class Network(nn.Module):
    """A small transformer; every parameter has its name from here."""

    def __init__(self, *, size: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, size)
        self.positions = nn.Embedding(MOST_TOKENS, size)
        self.layers = nn.ModuleList(Layer(size, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids [batch, length] to logits [batch, length, vocabulary]."""
        # Computed, not kept as a buffer: a buffer that the checkpoint lacks would stay on the meta device.
        hidden = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            hidden = layer(hidden)
        return self.norm(hidden) @ self.tokens.weight.T


class Layer(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.mix, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.wide, self.narrow = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        parts = self.mix(self.norm_1(hidden)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        return hidden + self.narrow(nn.functional.gelu(self.wide(self.norm_2(hidden))))
