"""A BERT encoder in plain torch, its parameters named as in Hugging Face's checkpoints."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from ray_model_serving.contract.errors import ModelServingError


class UnsupportedModelError(ModelServingError):
    """A model directory that this encoder can't run."""

    kind = "unsupported_model"


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The part of ``config.json`` that decides the encoder's shape."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float

    @classmethod
    def read(cls, path: Path) -> "BertConfig":
        """Read ``config.json``. Raises :class:`UnsupportedModelError` for another architecture or a missing key."""
        try:
            document = cast("dict[str, Any]", json.loads(path.read_text()))
            config = cls(**{name: document[name] for name in cls.__dataclass_fields__})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UnsupportedModelError(f"{path} is not the config of a BERT encoder: {error!r}") from error
        given = {key: document.get(key, default) for key, default in _SUPPORTED.items()}
        if given != _SUPPORTED:
            raise UnsupportedModelError(f"{path}: this encoder runs {_SUPPORTED}, got {given}")
        return config


_SUPPORTED = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}


class BertEncoder(nn.Module):
    """Token ids and mask to the last layer's hidden states; without the pooler, which embeddings do not use."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = _Embeddings(config)
        self.encoder = _Layers(config)

    def forward(self, token_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """``token_ids`` and ``mask`` (true where a token is real) are [batch, length]."""
        return self.encoder(self.embeddings(token_ids), mask[:, None, None, :])


class _Embeddings(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        # Computed, not kept as a buffer: a buffer that the checkpoint lacks would stay on the meta device.
        positions = torch.arange(token_ids.shape[1], device=token_ids.device)
        first_segment = self.token_type_embeddings.weight[0]
        return self.LayerNorm(self.word_embeddings(token_ids) + self.position_embeddings(positions) + first_segment)


class _Layers(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for layer in self.layer:
            hidden = layer(hidden, mask)
        return hidden


class _Layer(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = _Attention(config)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(config.hidden_size, config.intermediate_size)})
        self.output = _Residual(config.intermediate_size, config)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.attention(hidden, mask)
        wide = nn.functional.gelu(self.intermediate["dense"](hidden))
        return self.output(wide, hidden)


class _Attention(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        size = config.hidden_size
        self.self = nn.ModuleDict({name: nn.Linear(size, size) for name in ("query", "key", "value")})
        self.output = _Residual(size, config)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (self._split(self.self[name](hidden)) for name in ("query", "key", "value"))
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.output(mixed.transpose(1, 2).flatten(2), hidden)

    def _split(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class _Residual(nn.Module):
    def __init__(self, inner_size: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(inner_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, inner: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dense(inner) + residual)
