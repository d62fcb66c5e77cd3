"""The request under way: its id, how long each stage of it took, and what became of it."""

import re
import time
import uuid
from contextvars import ContextVar
from dataclasses import dataclass, field

REQUEST_ID_HEADER = "x-request-id"
# Printable and without blanks, so that an id is one word in a log, and short enough for each record to carry it.
_ID = re.compile(r"[\x21-\x7e]{1,128}")


def settled_id(given: str) -> str:
    """``given`` where it can stand in logs and answers, else a new one."""
    return given if _ID.fullmatch(given) else str(uuid.uuid4())


@dataclass(kw_only=True)
class RequestRecord:
    """Filled while a request is worked on; times are nanoseconds since the epoch, as traces have them."""

    request_id: str
    started_ns: int = field(default_factory=time.time_ns)
    stages: list[tuple[str, int]] = field(default_factory=list)
    """Names and when each began: ``queue``, ``body``, ``load``, ``batch_wait``, ``predict``."""
    reason: str | None = None
    """Of a refusal: the label of ``model_requests_rejected_total``."""
    trace_id: str | None = None
    carrier: dict[str, str] | None = None
    """The trace headers for whoever works on it next, where it is traced."""

    def begin(self, stage: str) -> None:
        """Enter a stage; that it is already in is fine. Any thread may call it."""
        if not self.stages or self.stages[-1][0] != stage:
            self.stages.append((stage, time.time_ns()))

    def spans(self, ended_ns: int) -> list[tuple[str, int, int]]:
        """Each stage with its begin and end."""
        stages = list(self.stages)  # a pass that nobody waits for any more may still add to it
        ends = [*(begun for _, begun in stages[1:]), ended_ns][: len(stages)]
        return [(name, begun, end) for (name, begun), end in zip(stages, ends, strict=True)]

    def seconds(self, ended_ns: int) -> dict[str, float]:
        """Seconds by stage."""
        return {name: round((end - begun) / 1e9, 4) for name, begun, end in self.spans(ended_ns)}


_current: ContextVar[RequestRecord | None] = ContextVar("ray_model_serving_request", default=None)


def current_request() -> RequestRecord | None:
    """The request that the calling task works on, or None."""
    return _current.get()


def set_current(record: RequestRecord) -> None:
    """For the task that answers it and the tasks that it starts."""
    _current.set(record)


def begin_stage(stage: str) -> None:
    record = _current.get()
    if record is not None:
        record.begin(stage)
