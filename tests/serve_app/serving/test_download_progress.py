"""What a replica's status says while its model's files arrive, from a real download of a real store."""

import sys
import threading
from pathlib import Path

import pytest

from emulators import RecordingProxy
from emulators.models import Bucket, large_model
from emulators.proxy import throttled
from ray_model_serving.contract.settings import ServingSettings
from ray_model_serving.loading.errors import CheckpointMismatchError
from ray_model_serving.serving.worker import ModelWorker, create_model
from ray_model_serving.store import FetchProgress

IMPORTABLE = Path(__file__).parent / "importable"
_MIB = 1024**2


def test_a_slow_download_says_so_with_bytes_done_and_in_total_and_a_failure_keeps_its_class(
    make_args, make_times_model, proxy: RecordingProxy, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # UR-013
    monkeypatch.syspath_prepend(str(IMPORTABLE))
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint_url)
    files = large_model(4)
    model = {**make_times_model(factor=5.0).settings("/times"), "uri": bucket.put(files)}
    settings = ServingSettings.from_mapping(make_args(model, cache_root=str(tmp_path / "cache")))
    worker = ModelWorker(settings, settings.models[0], create_model(settings.models[0]))
    proxy.rule = throttled(4 * _MIB)
    seen: list[tuple[str | None, FetchProgress | None]] = []
    half_way = threading.Event()
    tell = worker._on_progress

    def listen(progress: FetchProgress) -> None:
        tell(progress)
        seen.append((worker.phase, worker.progress))
        if 0 < progress.bytes_done < progress.bytes_total:
            half_way.set()

    monkeypatch.setattr(worker, "_on_progress", listen)
    with pytest.raises(CheckpointMismatchError, match="wrongly shaped"):
        worker.load()
    sys.modules.pop("serving_fakes", None)
    assert half_way.is_set(), "the status moves before the download ends"
    downloading = [progress for phase, progress in seen if phase == "download" and progress]
    total = sum(map(len, files.values()))
    assert {progress.bytes_total for progress in downloading} == {total}
    assert [p.bytes_done for p in downloading] == sorted(p.bytes_done for p in downloading)
    assert downloading[-1].bytes_done == total
    worker.close()
