"""Records what ``contract/metrics.py`` declares. Knows no metrics library: the replica passes Ray Serve's in."""

from collections.abc import Mapping
from typing import Any, Protocol, cast

from ray_model_serving.contract import metrics
from ray_model_serving.contract.metrics import Metric, MetricType


class Library(Protocol):
    """The part of ``ray.serve.metrics`` that is used here."""

    @property
    def Counter(self) -> Any: ...  # noqa: N802 - Ray's name
    @property
    def Gauge(self) -> Any: ...  # noqa: N802 - Ray's name


class Telemetry:
    """The instruments of one replica; Ray adds its deployment, application and replica to each."""

    def __init__(self, library: Library) -> None:
        self._instruments = {metric.name: _instrument(library, metric) for metric in metrics.ALL}

    def state(self, current: str, loads: int) -> None:
        """1 for the current state, 0 for the others, so that a sum over replicas counts them by state.

        ``loads`` are under way, those of variants too.
        """
        for state in metrics.STATES:
            self._set(metrics.MODEL_STATE, float(state == current), state)
        self._set(metrics.LOADS_IN_FLIGHT, float(loads))

    def rejected(self, reason: str) -> None:
        self._count(metrics.REJECTED, 1, reason)

    def loaded(self, report: Mapping[str, Any]) -> None:
        """``report`` is a load report: ``seconds``, ``bytes`` and ``memory``, as in the replica's status."""
        for phase in metrics.PHASES:
            self._set(metrics.LOAD_SECONDS, report["seconds"].get(phase, 0.0), phase)
        for source in metrics.SOURCES:
            self._count(metrics.MODEL_BYTES, report["bytes"][source], source)
        self._count(metrics.CACHE, 1, cache_result(report["bytes"]))
        self._set(metrics.LOAD_PEAK_ANON_BYTES, report["memory"]["peak_anon_bytes"])
        self._set(metrics.LOAD_PEAK_FILE_BYTES, report["memory"]["peak_file_bytes"])
        self._set(metrics.GPU_PEAK_BYTES, report["memory"]["gpu_peak_bytes"])

    def _set(self, metric: Metric, value: float, label: str | None = None) -> None:
        self._instruments[metric.name].set(value, tags=_tags(metric, label))

    def _count(self, metric: Metric, amount: int, label: str) -> None:
        if amount > 0:  # Ray's counters refuse 0
            self._instruments[metric.name].inc(amount, tags=_tags(metric, label))


def cache_result(bytes_by_source: Mapping[str, int]) -> str:
    """What the node had of a model, from the ``bytes`` of its load report: a label of ``model_cache_total``."""
    if bytes_by_source["store"]:
        return "resumed" if bytes_by_source["node"] else "miss"
    return "image" if bytes_by_source["image"] else "hit"


def _instrument(library: Library, metric: Metric) -> Any:
    kind = library.Counter if metric.type is MetricType.COUNTER else library.Gauge
    keys = cast("tuple[str, ...]", (metric.label,) if metric.label else ())
    return kind(metric.name, description=f"{metric.description} ({metric.unit})", tag_keys=keys)


def _tags(metric: Metric, label: str | None) -> dict[str, str]:
    if label is None or metric.label is None:
        return {}
    if label not in metric.label_values:
        raise ValueError(f"{metric.name}: label {metric.label}={label!r} is not one of {metric.label_values}")
    return {metric.label: label}
