"""Metrics of the serving library, declared once: type, unit, labels and the closed set of each label's values.

Ray exports them with the prefix ``ray_``. Replica, request and object names are never labels: they grow without bound.
"""

from dataclasses import dataclass
from enum import Enum


class MetricType(str, Enum):
    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, kw_only=True)
class Metric:
    name: str
    type: MetricType
    unit: str
    description: str
    label: str | None = None
    label_values: tuple[str, ...] = ()


PHASES = ("resolve", "wait", "download", "verify", "commit", "map", "convert", "transfer", "warm_up", "total")
STATES = ("unloaded", "loading", "warming", "ready", "failed")
SOURCES = ("store", "node", "image")

LOAD_SECONDS = Metric(
    name="model_load_seconds", type=MetricType.GAUGE, unit="s", label="phase", label_values=PHASES,
    description="Seconds of each phase of the last load",
)  # fmt: skip
LOAD_PEAK_ANON_BYTES = Metric(
    name="model_load_peak_anon_bytes", type=MetricType.GAUGE, unit="bytes",
    description="Anonymous memory at the peak of the last load, over what the process had before",
)  # fmt: skip
LOAD_PEAK_FILE_BYTES = Metric(
    name="model_load_peak_file_bytes", type=MetricType.GAUGE, unit="bytes",
    description="File-backed memory at the peak of the last load, over what the process had before",
)  # fmt: skip
GPU_PEAK_BYTES = Metric(
    name="model_gpu_peak_bytes", type=MetricType.GAUGE, unit="bytes",
    description="Most bytes that torch held on the GPU during the last load and its warm-up",
)  # fmt: skip
MODEL_BYTES = Metric(
    name="model_bytes_total", type=MetricType.COUNTER, unit="bytes", label="source", label_values=SOURCES,
    description="Model bytes by where they came from",
)  # fmt: skip
MODEL_STATE = Metric(
    name="model_state", type=MetricType.GAUGE, unit="1", label="state", label_values=STATES,
    description="1 for the state that the replica's model is in, 0 for the others",
)  # fmt: skip
REJECTED = Metric(
    name="model_requests_rejected_total", type=MetricType.COUNTER, unit="1", label="reason",
    label_values=("too_large", "bad_request", "deadline", "load_failed", "busy", "memory", "draining"),
    description="Requests that were refused, by reason",
)  # fmt: skip

ALL = (LOAD_SECONDS, LOAD_PEAK_ANON_BYTES, LOAD_PEAK_FILE_BYTES, GPU_PEAK_BYTES, MODEL_BYTES, MODEL_STATE, REJECTED)
