"""Where a request begins and ends: the one place that counts, logs and traces what became of it."""

import logging
import time
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ray_model_serving.serving.exchange import RefusedError, Response
from ray_model_serving.serving.logs import QUIET_S, Occasionally
from ray_model_serving.serving.requests import (
    REQUEST_ID_HEADER,
    RequestRecord,
    current_request,
    set_current,
)
from ray_model_serving.telemetry import Telemetry

if TYPE_CHECKING:
    from ray_model_serving.serving.tracing import Tracing

log = logging.getLogger("ray.serve")

# A request that took this part of its deadline is told in the log, with the seconds of each stage.
SLOW_FRACTION = 0.5
_SLOW = "slow"
_CALLERS = ("bad_request", "too_large")
_FAILURES = ("model_failed", "unavailable")


class RequestDesk:
    """Belongs to one event loop. ``tracing`` is None where no endpoint is set."""

    def __init__(self, telemetry: Telemetry, *, tracing: "Tracing | None" = None, quiet_s: float = QUIET_S) -> None:
        self._telemetry = telemetry
        self._tracing = tracing
        self._quiet_s = quiet_s
        self._occasionally = Occasionally(self._tell, quiet_s=quiet_s)

    async def follow(
        self,
        work: Awaitable[Response],
        *,
        request_id: str,
        replaced: bool = False,
        deadline_s: float,
        carrier: Mapping[str, str] | None = None,
    ) -> Response:
        """Await ``work`` as one request; ``replaced`` where its id is not the one that came with it.

        ``carrier`` has the W3C trace headers that came with it; without it the request is not traced.
        """
        record = RequestRecord(request_id=request_id)
        set_current(record)
        trace = self._tracing.begin("request", record, carrier) if self._tracing and carrier is not None else None
        status: int | None = None
        try:
            response = await work
            status = response.status
            taken_s = (time.time_ns() - record.started_ns) / 1e9
            if taken_s > deadline_s * SLOW_FRACTION and self._occasionally.lets(_SLOW):
                stages = record.seconds(time.time_ns())
                extra = {"event": "request_slow", "seconds": round(taken_s, 4), "stages": stages, "status": status}
                log.warning("a request took %.2f s of its %g s: %s", taken_s, deadline_s, stages, extra=extra)
            if replaced:
                # Serve's proxy sends back what came; this is the one that the logs have.
                headers = {**response.headers, REQUEST_ID_HEADER: record.request_id}
                response = replace(response, headers=headers)
            return response
        finally:
            if trace is not None:
                trace.end(status)

    def refuse(self, refusal: RefusedError, model: str | None) -> Response:
        """The answer to a request that gets no prediction: counted, in the log, and with the request's id."""
        record = current_request()
        if record is not None:
            record.reason = refusal.reason
        self._telemetry.rejected(refusal.reason)
        if self._occasionally.lets(refusal.reason):
            extra = {
                "event": "request_refused",
                "reason": refusal.reason,
                "status": refusal.status,
                "kind": refusal.kind,
                **({"model": model} if model else {}),
            }
            # What a caller did wrong may quote its input, which belongs in no log.
            said = refusal.kind if refusal.reason in _CALLERS else refusal.message
            cause = refusal.__cause__ if refusal.reason in _FAILURES else None
            level = logging.ERROR if cause else logging.WARNING
            log.log(level, "a request was refused: %s", said, exc_info=cause, extra=extra)
        return refusal.to_response()

    def _tell(self, kind: str, count: int) -> None:
        event = "requests_slow" if kind == _SLOW else "requests_refused"
        extra = {"event": event, "reason": kind, "count": count, "over_s": self._quiet_s}
        log.warning("%d more requests within %g s: %s", count, self._quiet_s, kind, extra=extra)
