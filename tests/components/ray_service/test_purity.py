"""Renderers run where pulumi is not installed: in the command, and in whatever checks a stack file."""

import subprocess
import sys

import pytest

RENDERERS = (
    "eks_gpu_serving",
    "eks_gpu_serving.ray_service.manifest",
    "eks_gpu_serving.ray_service.objects",
    "eks_gpu_serving.ray_service.prefetch",
    "eks_gpu_serving.ray_service.serve_config",
    "eks_gpu_serving.kuberay_values",
)


@pytest.mark.parametrize("module", RENDERERS)
def test_it_is_imported_without_pulumi(module: str) -> None:
    program = f"import sys, {module}; sys.exit('pulumi' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
