"""Metrics of the serving library, declared once: type, unit, labels and the closed set of each label's values.

Ray exports them with the prefix ``ray_``. No request, object or variant is ever a label of ours: they grow without
bound. ``docs/metrics.md`` is made from this file.
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
    advice: str
    """What to do about it, or what to read it for."""
    label: str | None = None
    label_values: tuple[str, ...] = ()


PHASES = ("resolve", "wait", "download", "verify", "commit", "map", "convert", "transfer", "warm_up", "total")
STATES = ("unloaded", "loading", "warming", "ready", "failed")
SOURCES = ("store", "node", "image")

CACHE_RESULTS = ("hit", "image", "resumed", "miss")
REASONS = (
    "too_large",
    "bad_request",
    "deadline",
    "load_failed",
    "busy",
    "memory",
    "draining",
    "unavailable",
    "model_failed",
)

LOAD_SECONDS = Metric(
    name="model_load_seconds", type=MetricType.GAUGE, unit="s", label="phase", label_values=PHASES,
    description="Seconds of each phase of the last load that succeeded",
    advice="`download` long: the store or the node's network; `wait` long: other loads of the node go first "
    "(`loads_at_once_per_node`); `convert` long on every load: the node keeps no converted copy (`keep_converted`); "
    "`total` belongs into `autoscaling.load_time_s`",
)  # fmt: skip
LOAD_PEAK_ANON_BYTES = Metric(
    name="model_load_peak_anon_bytes", type=MetricType.GAUGE, unit="bytes",
    description="Anonymous memory at the peak of the last load, over what the process had before",
    advice="near `host_peak_bytes`: raise it before a larger version of the model is deployed",
)  # fmt: skip
LOAD_PEAK_FILE_BYTES = Metric(
    name="model_load_peak_file_bytes", type=MetricType.GAUGE, unit="bytes",
    description="File-backed memory at the peak of the last load, over what the process had before",
    advice="as large as the model is right: mapped files are shared by all replicas of a node and reclaimable",
)  # fmt: skip
GPU_PEAK_BYTES = Metric(
    name="model_gpu_peak_bytes", type=MetricType.GAUGE, unit="bytes",
    description="Most bytes that torch held on the GPU during the last load and its warm-up",
    advice="near `gpu_bytes`: raise it, or lower `limits.max_batch_size` or `limits.max_batch_cost`",
)  # fmt: skip
MODEL_BYTES = Metric(
    name="model_bytes_total", type=MetricType.COUNTER, unit="bytes", label="source", label_values=SOURCES,
    description="Bytes of loaded models by where they came from",
    advice="`store` grows with every replica and not with every node: the cache does not hold the model "
    "(`cache_budget_bytes`), or its files change (pin `snapshot_id`)",
)  # fmt: skip
CACHE = Metric(
    name="model_cache_total", type=MetricType.COUNTER, unit="1", label="result", label_values=CACHE_RESULTS,
    description="Loads by what the node had of the model: all of it (`hit`, also where another process had just "
    "fetched it or it lies in a `file://` directory), all of it in the image (`image`), a part that an earlier "
    "download left (`resumed`), nothing (`miss`)",
    advice="more than one `miss` a node and version: the snapshot is evicted (`cache_budget_bytes`); many `resumed`: "
    "downloads are killed",
)  # fmt: skip
MODEL_STATE = Metric(
    name="model_state", type=MetricType.GAUGE, unit="1", label="state", label_values=STATES,
    description="1 for the state that the replica's model is in, 0 for the others",
    advice="`failed` above 0: `GET <route>/status` and the log record `load_failed` name the cause",
)  # fmt: skip
LOADS_IN_FLIGHT = Metric(
    name="model_loads_in_flight", type=MetricType.GAUGE, unit="1",
    description="Loads and warm-ups under way in the replica, those of variants too",
    advice="high for longer than a load's `total`: the log record `load_phase` says where it is",
)  # fmt: skip
REJECTED = Metric(
    name="model_requests_rejected_total", type=MetricType.COUNTER, unit="1", label="reason", label_values=REASONS,
    description="Requests that got no prediction, by reason; each is counted once, where it was refused",
    advice="`busy`, `deadline`: more replicas, or a smaller `limits.max_batch_cost`; `memory`: fewer at once "
    "(`limits.max_ongoing_requests`) or more memory; `load_failed`, `model_failed`: the log has the cause; `draining` "
    "and `unavailable` outside of a roll-out: replicas die or are replaced; `too_large`, `bad_request`: the caller's",
)  # fmt: skip

ALL = (
    LOAD_SECONDS,
    LOAD_PEAK_ANON_BYTES,
    LOAD_PEAK_FILE_BYTES,
    GPU_PEAK_BYTES,
    MODEL_BYTES,
    CACHE,
    MODEL_STATE,
    LOADS_IN_FLIGHT,
    REJECTED,
)
