"""The models of the benchmarks: square bfloat16 layers in safetensors files, and the module that takes them.

Nothing but torch and safetensors in here, and those only inside functions: peers run it in environments of their own.
"""

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch

WIDTH = 2048
LAYER_MIB = WIDTH * WIDTH * 2 // 1024**2


def make_checkpoint(directory: Path, mib: int, shards: int = 1) -> None:
    """Write ``shards`` files of ``mib`` MiB each, named as Hugging Face names them; ``mib`` is a multiple of 8."""
    import torch
    from safetensors.torch import save_file

    per_shard = mib // LAYER_MIB
    if per_shard < 1 or mib % LAYER_MIB:
        raise SystemExit(f"--mib {mib}: the layers of the benchmark have {LAYER_MIB} MiB each, give a multiple of that")
    directory.mkdir(parents=True)
    index: dict[str, str] = {}
    for shard in range(shards):
        generator = torch.Generator().manual_seed(shard)
        name = "model.safetensors" if shards == 1 else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        layers = range(shard * per_shard, (shard + 1) * per_shard)
        # Random bits cost a tenth of the time of random normals; NaN among them does no harm to a load.
        weights = {
            f"{layer}.weight": torch.randint(-(2**15), 2**15, (WIDTH, WIDTH), dtype=torch.int16, generator=generator)
            .view(torch.bfloat16)
            for layer in layers
        }  # fmt: skip
        save_file(weights, directory / name)
        index |= dict.fromkeys(weights, name)
    if shards > 1:
        document = {"metadata": {"total_size": mib * shards * 1024**2}, "weight_map": index}
        (directory / "model.safetensors.index.json").write_text(json.dumps(document), encoding="utf-8")
    (directory / "config.json").write_text(json.dumps({"layers": per_shard * shards}), encoding="utf-8")


def build(layers: int) -> "torch.nn.Module":
    """The module of a checkpoint with that many layers."""
    import torch

    return torch.nn.Sequential(
        *(torch.nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(layers))
    )


def build_from(directory: Path) -> "torch.nn.Module":
    """The module that a checkpoint's config.json describes."""
    return build(json.loads((directory / "config.json").read_text(encoding="utf-8"))["layers"])


def assign(layers: int, tensors: "dict[str, torch.Tensor]") -> "torch.nn.Module":
    """A module without memory of its own that takes the tensors as they are."""
    import torch

    with torch.device("meta"):
        module = build(layers)
    module.load_state_dict(tensors, strict=True, assign=True)
    return module.eval().requires_grad_(False)


def load_directory(directory: Path) -> "torch.nn.Module":
    """The best way by hand: safetensors maps the files, the module takes the mapped tensors."""
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(directory.rglob("*.safetensors")):
        tensors |= load_file(path)
    return assign(len(tensors), tensors)


def digest(module: "torch.nn.Module") -> int:
    """CRC32 over all weights in order: the client delivered what the store has."""
    import torch

    value = 0
    for parameter in module.parameters():
        value = zlib.crc32(cast("Any", parameter.detach().contiguous().view(torch.uint8).numpy()), value)
    return value
