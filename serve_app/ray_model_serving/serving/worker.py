"""What runs on a replica's one model thread: the class is imported, the model loaded, warmed up and asked."""

import gc
import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_model_serving.contract.cache_format import CacheLayout
from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.settings import ModelSettings, ServingSettings
from ray_model_serving.host_memory import Resident, resident
from ray_model_serving.model import ServedModel
from ray_model_serving.model_class import new_model
from ray_model_serving.serving.phases import LoadPhases
from ray_model_serving.serving.slots import load_slot
from ray_model_serving.store import FetchProgress, ModelStore, Snapshot
from ray_model_serving.store.report import joined

if TYPE_CHECKING:
    from ray_model_serving.loading.served import Served

log = logging.getLogger("ray.serve")


def create_model(model: ModelSettings) -> ServedModel:
    """The model engineer's class, made. Raises :class:`BadModelClassError`."""
    return new_model(model.model_class, max_batch_size=model.limits.max_batch_size)


class ModelWorker:
    """Loads, warms up and asks one model. Not thread-safe: one thread calls it; the event loop reads its attributes."""

    def __init__(
        self,
        settings: ServingSettings,
        model: ModelSettings,
        served: ServedModel | None = None,
        *,
        phases: LoadPhases | None = None,
        admit: Callable[[int], None] | None = None,
    ) -> None:
        """``served`` is the model class's instance; without it each load makes one. ``admit`` gets the bytes that the
        weights will take on the device, and returns when there is room.
        """
        self._phases = phases or LoadPhases(model.name)
        self._settings = settings
        self._model = model
        self._served = served
        self._admit = admit
        self._snapshot: Snapshot | None = None
        self._loaded: Served | None = None
        self._started = 0.0
        self._before_load: Resident | None = None
        self.progress: FetchProgress | None = None
        self.report: dict[str, Any] | None = None
        """The last load, in the shape that ``ray-model load --json`` prints, with ``warm_up`` among its seconds."""

    @property
    def phase(self) -> str | None:
        """What the load is doing, or None."""
        return self._phases.current

    @phase.setter
    def phase(self, phase: str | None) -> None:
        self._phases.enter(phase)

    @property
    def snapshot_id(self) -> str | None:
        return self._snapshot.snapshot_id if self._snapshot else None

    def load(self) -> None:
        """Files to the node, weights to the device. Raises the typed errors of store and loading."""
        self._started, started_at, self._before_load = time.monotonic(), time.time(), resident()
        with self._phases.failing(), _exit_is_an_error():
            if self._served is None:
                self._served = create_model(self._model)
            try:
                waited_s = self._load_once()
            except Exception:
                if self._snapshot is None or self._snapshot.path.exists():
                    raise
                # Somebody removed the snapshot between the fetch and the load; it is ensured once more.
                waited_s = self._load_once()
        assert self._snapshot is not None  # what a load leaves
        assert self._loaded is not None
        self.report = joined(self._snapshot.report.to_json(), self._loaded.report.to_json())
        self.report["started_at_s"] = round(started_at, 3)
        # The lock of the snapshot and the slot: both are time spent on other processes of the node.
        self.report["seconds"]["wait"] = round(self.report["seconds"]["wait"] + waited_s, 4)

    def warm_up(self) -> None:
        """The model's own warm-up; after it the load report is complete."""
        assert self.report is not None  # the gate warms up after it loaded
        # Here and not above, as below: the builder of the application imports this module and needs no torch.
        from ray_model_serving.loading.gpu import peak_bytes as gpu_peak_bytes
        from ray_model_serving.loading.sampler import PeakSampler

        self.phase, started = "warm_up", time.monotonic()
        with self._phases.failing(), _exit_is_an_error(), PeakSampler(baseline=self._before_load) as sampler:
            self._instance.warm_up()
        ended = time.monotonic()
        # Beside the peaks of the load: mapped weights become resident, and work spaces appear, when a model first runs.
        self.report["memory"]["gpu_peak_bytes"] = gpu_peak_bytes(self._model.device)
        self.report["memory"]["warm_up_peak_anon_bytes"] = sampler.peak_anon_bytes
        self.report["memory"]["warm_up_peak_file_bytes"] = sampler.peak_file_bytes
        self.report["seconds"]["warm_up"] = round(ended - started, 4)
        self.report["seconds"]["total"] = round(ended - self._started, 4)
        self.phase = None
        extra = {
            "event": "load_ready",
            "model": self._model.name,
            "snapshot_id": self.snapshot_id,
            "seconds": self.report["seconds"],
            "bytes": self.report["bytes"],
        }
        log.info("model %s is ready: %s", self._model.name, self.report, extra=extra)

    def predict(self, inputs: list[Any]) -> Sequence[Any]:
        with _exit_is_an_error():
            return self._instance.predict_batch(inputs)

    def free(self) -> None:
        """Give device memory that nothing uses back, before a batch is tried again."""
        from ray_model_serving.loading.gpu import free_unused

        free_unused(self._model.device)

    def close(self) -> None:
        """Let go of the files: of a loaded model, or of what an attempt that failed later on still holds."""
        for held in (self._loaded, self._snapshot):
            if held is not None:
                held.close()
        self._loaded = self._snapshot = None

    def unload(self) -> None:
        """Let go of files and weights; a load after it makes the model anew."""
        self.close()
        self._served = self.report = None
        gc.collect()  # modules with cycles among them would keep their weights until some later collection
        self.free()

    @property
    def _instance(self) -> ServedModel:
        assert self._served is not None  # there from the first load on
        return self._served

    def _load_once(self) -> float:
        """Fetch and load; returns the seconds that it waited for other loads of the node."""
        from ray_model_serving.loading.served import Place, device_bytes, load_served

        settings, model = self._settings, self._model
        layout = CacheLayout(Path(settings.cache_root))
        end = self._started + settings.load_deadline_s
        self.close()
        snapshot = self._fetch(end)
        self.phase, waiting_since = "wait", time.monotonic()
        if self._admit:
            self._admit(device_bytes(self._instance, snapshot, model.dtype))
        slots = load_slot(
            layout.locks,
            at_once=settings.loads_at_once_per_node,
            deadline_s=max(0.0, end - time.monotonic()),
        )
        with slots:
            waited_s = time.monotonic() - waiting_since
            self.phase = "map"
            self._loaded = load_served(
                self._instance,
                snapshot,
                dtype=model.dtype,
                host_peak_bytes=model.host_peak_bytes,
                place=Place(
                    device=model.device,
                    num_cpus=model.num_cpus,
                    num_gpus=model.num_gpus,
                    layout=layout,
                    # The first replica of a node converts, the others map what it made.
                    keep_converted=model.keep_converted,
                    budget_bytes=settings.cache_budget_bytes,
                ),
            )
        return waited_s

    def _fetch(self, end: float) -> Snapshot:
        settings, model = self._settings, self._model
        store = ModelStore(
            Path(settings.cache_root),
            baked_root=Path(settings.baked_root) if settings.baked_root else None,
            connections=settings.connections,
            max_bytes_per_s=settings.rate_cap_bytes_per_s,
            cache_budget_bytes=settings.cache_budget_bytes,
            expected_role_arn=settings.expected_role_arn,
            deadline_s=max(1.0, end - time.monotonic()),
        )
        self.phase = "resolve"
        self._snapshot = store.ensure(
            model.uri,
            include=model.include,
            exclude=model.exclude,
            snapshot_id=model.snapshot_id,
            on_progress=self._on_progress,
        )
        return self._snapshot

    def _on_progress(self, progress: FetchProgress) -> None:
        self.phase, self.progress = progress.phase, progress


@contextmanager
def _exit_is_an_error() -> Generator[None]:
    """A model class that calls sys.exit would end the replica's event loop and leave its callers hanging."""
    try:
        yield
    except SystemExit as error:
        raise ModelServingError(
            f"the model class called sys.exit({error.code!r})", hint="raise an error instead"
        ) from error
