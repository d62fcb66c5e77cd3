"""Building on the meta device costs neither memory nor the import of the compiler."""

import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from ray_model_serving.loading.meta import build_on_meta

_BUILD = """
import sys
from pathlib import Path
import torch
from torch import nn
from ray_model_serving.loading.meta import build_on_meta

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30000, 384)
        self.layer = nn.TransformerEncoderLayer(384, 12)
        self.conv = nn.Conv1d(4, 4, 3)
        nn.init.trunc_normal_(self.embedding.weight, std=0.02)
        nn.init.kaiming_normal_(self.conv.weight)
        self.layer.norm1.weight.data.normal_()

module = build_on_meta(lambda directory: Model(), Path())
assert all(parameter.is_meta for parameter in module.parameters())
print(",".join(name for name in ("torch._dynamo", "sympy") if name in sys.modules))
"""


def test_initialisation_does_not_import_the_compiler():
    run = subprocess.run([sys.executable, "-c", _BUILD], capture_output=True, text=True, timeout=150)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "", "3 s and 85 MiB in every replica, for numbers that nobody sees"


def test_real_tensors_are_still_initialised():
    def build(directory: Path) -> nn.Module:
        module = nn.Linear(2, 2)
        module.register_buffer("noise", torch.empty(1000, device="cpu").normal_())
        return module

    noise = build_on_meta(build, Path()).get_buffer("noise")
    assert 0.8 < float(noise.std()) < 1.2
