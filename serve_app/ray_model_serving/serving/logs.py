"""What every log record of a replica carries, and how often one thing is said."""

import asyncio
import contextvars
import logging
from collections import Counter
from collections.abc import Callable, Mapping

from ray_model_serving.serving.requests import current_request

LOGGER = logging.getLogger("ray.serve")

# Long enough that a flood is a few records a minute, short enough to see it while it lasts.
QUIET_S = 10.0


class Fields(logging.Filter):
    """Adds fields to each record of a logger, and those of the request under way; it leaves nothing out.

    Ray Serve adds the deployment, the replica and, for a request, its id and application by itself (Ray 2.60), but not
    to what is logged outside of a request. Strings, numbers and None only: Serve writes them as JSON.
    """

    def __init__(self, fixed: Mapping[str, object], changing: Callable[[], Mapping[str, object]] = dict) -> None:
        super().__init__()
        self._fixed = dict(fixed)
        self._changing = changing

    def filter(self, record: logging.LogRecord) -> bool:
        request = current_request()
        said = {} if request is None else {"request_id": request.request_id}
        if request is not None and request.trace_id:
            said["trace_id"] = request.trace_id
        # A variant's record names it: what its load does is not what the model's does.
        another = getattr(record, "model", self._fixed.get("model")) != self._fixed.get("model")
        changing = {} if another else self._changing()
        for name, value in {**self._fixed, **changing, **said}.items():
            if not hasattr(record, name):  # what the caller says of itself counts
                setattr(record, name, value)
        return True

    def install(self) -> None:
        """On Ray Serve's logger, instead of an earlier one; a replica has its process for itself."""
        for old in [each for each in LOGGER.filters if isinstance(each, Fields)]:
            LOGGER.removeFilter(old)
        LOGGER.addFilter(self)


class Occasionally:
    """Lets the first of each kind through, and then tells every ``quiet_s`` how many came since.

    ``kinds`` come from closed sets. Belongs to one event loop.
    """

    def __init__(self, tell: Callable[[str, int], None], *, quiet_s: float = QUIET_S) -> None:
        self._tell = tell
        self._quiet_s = quiet_s
        self._since: Counter[str] = Counter()
        self._quiet: set[str] = set()

    def lets(self, kind: str) -> bool:
        """Whether to speak of it now; if not, it is counted."""
        if kind in self._quiet:
            self._since[kind] += 1
            return False
        self._quiet.add(kind)
        self._wake_later(kind)
        return True

    def _wake_later(self, kind: str) -> None:
        # In no request's context: the count belongs to none.
        empty = contextvars.Context()
        asyncio.get_running_loop().call_later(self._quiet_s, self._look, kind, context=empty)

    def _look(self, kind: str) -> None:
        count = self._since.pop(kind, 0)
        if count == 0:
            self._quiet.discard(kind)
            return
        self._tell(kind, count)
        self._wake_later(kind)
