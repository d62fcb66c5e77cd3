"""Runs Pulumi programs without a cloud and records what they would register.

    graph = run(lambda: GpuNodeGroup("gpu", args), preview=True)
    group = graph.one("aws:eks/nodeGroup:NodeGroup")
    assert group.inputs["scalingConfig"]["maxSize"] == 4

Rules for whoever writes tests with it:

- Build everything inside the callable. An exception in it, or in an ``.apply`` of what it built, comes out of ``run``.
- Compare ``inputs``, after ``run``. In a preview an ``.apply`` on something unknown never runs, so an assert in one
  passes without looking; unknown inputs are the constant ``UNKNOWN`` here.
- Run structure tests with ``preview`` False and True: ``@pytest.mark.parametrize("preview", PREVIEW_MODES)``.
- ``properties.violations(graph, ...)`` holds the rules that every graph of ours has to keep.
"""

from harness.graph import UNKNOWN, Graph, Invoke, Record
from harness.running import PREVIEW_MODES, run

__all__ = ["run", "PREVIEW_MODES", "Graph", "Record", "Invoke", "UNKNOWN"]
