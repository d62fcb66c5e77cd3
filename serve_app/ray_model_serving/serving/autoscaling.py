"""How many replicas a model should have: Ray Serve's own rule by ongoing requests, without its start storms.

Serve's default policy divides by the replicas that run, so that those that still load look missing and are asked for
again. Serve 2.60 applies its delays and bounds around a policy of one's own, too; what it does not do is here.

Standard library only and in one file: Serve pickles the class with the code of this module, and the controller on the
head unpickles it.
"""

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

# The mean of a window comes as a float; 4.000000001 requests are four.
_ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Since when the target is above what runs, and how far the starts had come then."""

    since_s: float
    target: int
    running: int


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a decision depends on. ``ongoing`` is the mean of running and queued requests over the look-back period."""

    ongoing: float
    target_ongoing_requests: float
    running: int
    target: int
    least: int
    most: int
    now_s: float


def decide(load: Load, waiting: Waiting | None, *, max_step: int, max_start_s: float) -> tuple[int, Waiting | None]:
    """The replicas to ask for, and what to remember until the next decision. Pure.

    At most ``max_step`` are added at once, and none before the ones asked for earlier run. A start that has not come
    further for ``max_start_s`` holds nobody up any longer: then one more is asked for.
    """
    waiting = _waiting(load, waiting)
    wanted = math.ceil(load.ongoing / load.target_ongoing_requests - _ROUNDING)
    if load.running == 0:
        # Serve wakes a model from zero itself, with one replica. Nothing that runs means nothing was measured.
        wanted = load.target
    elif wanted > load.target:
        if waiting is None:
            wanted = min(wanted, load.target + max_step)
        else:
            wanted = load.target + (1 if load.now_s - waiting.since_s >= max_start_s else 0)
    return max(load.least, min(wanted, load.most)), waiting


def _waiting(load: Load, before: Waiting | None) -> Waiting | None:
    if load.running >= load.target:
        return None
    # Each replica that came up, and each new request for one, starts the clock again. One that died does not.
    if before is None or load.target > before.target or load.running > before.running:
        return Waiting(since_s=load.now_s, target=load.target, running=load.running)
    return before


class HoldWhileStarting:
    """The policy as Ray Serve 2.60 calls it: ``autoscaling_config.policy`` names it, with these as ``policy_kwargs``.

    Serve keeps the state that a call returns and passes it in again; it is lost when the controller restarts, which
    only starts the clock of ``max_start_s`` again.
    """

    def __init__(self, *, max_step: int, max_start_s: float) -> None:
        if max_step < 1 or max_start_s <= 0:
            raise ValueError(f"got max_step {max_step} and max_start_s {max_start_s:g}, must be >= 1 and > 0")
        self._max_step = max_step
        self._max_start_s = max_start_s

    def __call__(self, ctx: Any) -> tuple[int, dict[str, Any]]:
        """Takes Serve's AutoscalingContext."""
        load = Load(
            ongoing=ctx.total_num_requests,
            target_ongoing_requests=ctx.config.get_target_ongoing_requests(),
            running=ctx.current_num_replicas,
            target=ctx.target_num_replicas,
            least=ctx.capacity_adjusted_min_replicas,
            most=ctx.capacity_adjusted_max_replicas,
            now_s=time.time() if ctx.current_time is None else ctx.current_time,
        )
        remembered = ctx.policy_state.get("waiting")
        before = Waiting(**remembered) if remembered else None
        replicas, waiting = decide(load, before, max_step=self._max_step, max_start_s=self._max_start_s)
        return replicas, {"waiting": asdict(waiting) if waiting else None}
