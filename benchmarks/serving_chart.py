"""The picture of a burst. matplotlib is installed where the peers are, never among the project's requirements."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.children import ROOT, CaseFailed, last_words

CHART = peers.Environment(name="chart", packages=("matplotlib==3.11.2",))
_LIMIT_S = 120.0
# Colours that stay apart for colour-blind readers (Okabe and Ito's set).
_BLUE, _ORANGE, _GREEN, _RED, _GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666"


def draw(title: str, cases: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw the series of each case side by side. Says on stderr where that can't be done; figures matter more."""
    with tempfile.TemporaryDirectory(prefix="bench-chart-") as work:
        data = Path(work) / "data.json"
        data.write_text(json.dumps({"title": title, "cases": cases}), encoding="utf-8")
        try:
            python = peers.python_of(CHART)
            done = subprocess.run(
                [python, "-m", "benchmarks.serving_chart", str(data), str(path)],
                cwd=ROOT, env={"MPLCONFIGDIR": work, "PATH": "/usr/bin:/bin"}, timeout=_LIMIT_S,
                capture_output=True, text=True,
            )  # fmt: skip
            if done.returncode:
                raise CaseFailed(last_words(done.stderr))
        except (CaseFailed, subprocess.TimeoutExpired) as error:
            print(f"{path} is not drawn: {error}", file=sys.stderr)


def _draw_case(axes: Any, case: str, one: Mapping[str, Any]) -> None:
    replicas, requests, memory, store = axes
    replicas.set_title(case, fontsize=13, fontweight="bold", pad=10)
    replicas.stackplot(
        one["at_s"],
        one["running"],
        one["starting"],
        labels=["running", "starting"],
        colors=[_GREEN, _ORANGE],
        step="post",
    )
    seconds = [second + 0.5 for second in range(len(one["ok"]))]
    for name, colour in (("ok", _GREEN), ("refused", _ORANGE), ("failed", _RED)):
        requests.plot(seconds, one[name], label=name, color=colour, linewidth=1.6)
    memory.fill_between(one["at_s"], one["anonymous_gib"], color=_BLUE, alpha=0.35, linewidth=0)
    memory.plot(one["at_s"], one["anonymous_gib"], color=_BLUE, linewidth=1.6, label="all replicas")
    store.plot(one["sent_at_s"], one["sent_models"], color=_BLUE, linewidth=1.6, label="sent since the deployment")
    store.axhline(1, color=_GREY, linewidth=0.9, linestyle="--", label="the model once")


def main() -> None:
    """In the environment with matplotlib."""
    import matplotlib as mpl  # pyright: ignore[reportMissingImports] - only in the peers' environment

    mpl.use("Agg")
    # The same data gives the same file, and text stays text.
    mpl.rcParams.update({"svg.hashsalt": "burst", "svg.fonttype": "none", "font.size": 10, "axes.axisbelow": True})
    from matplotlib import pyplot as plt  # pyright: ignore[reportMissingImports]

    data, path = Path(sys.argv[1]), Path(sys.argv[2])
    given = json.loads(data.read_text(encoding="utf-8"))
    cases: dict[str, Any] = given["cases"]
    end = max(len(one["ok"]) for one in cases.values())
    figure, grid = plt.subplots(
        4, len(cases), figsize=(5.6 * len(cases), 9.6), sharex=True, sharey="row", squeeze=False, layout="constrained"
    )
    figure.suptitle(given["title"], fontsize=14)
    for column, (case, one) in enumerate(cases.items()):
        _draw_case(grid[:, column], case, one)
    labels = ("replicas", "requests a second", "anonymous memory, GiB", "bytes from the store,\ntimes the model")
    for row, label in zip(grid, labels, strict=True):
        row[0].set_ylabel(label)
        for axis in row:
            axis.grid(color="#dddddd", linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_xlim(0, end)
            axis.set_ylim(bottom=0)
            axis.tick_params(labelleft=True)
        row[-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9)
    for axis in grid[-1]:
        axis.set_xlabel("seconds since the first request of the burst")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=110)


if __name__ == "__main__":
    main()
