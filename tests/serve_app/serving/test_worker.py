import sys
from pathlib import Path

import pytest

from ray_model_serving.contract.settings import ServingSettings
from ray_model_serving.serving.worker import BadModelClassError, ModelWorker, create_model
from ray_model_serving.store.errors import DirectoryNotFoundError

IMPORTABLE = Path(__file__).parent / "importable"


@pytest.fixture
def make_worker(make_args, make_times_model, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(IMPORTABLE))

    def make(**changes):
        model = make_times_model(factor=5.0)
        args = make_args({**model.settings("/times"), **changes}, cache_root=str(tmp_path / "cache"))
        settings = ServingSettings.from_mapping(args)
        served = create_model(settings.models[0])
        return ModelWorker(settings, settings.models[0], served)

    yield make
    sys.modules.pop("serving_fakes", None)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("no_such_module:Model", "can't be imported: No module named 'no_such_module'"),
        ("json:NoSuchClass", "can't be imported"),
        ("json:JSONDecoder", "is not a subclass of ServedModel"),
        ("json:dumps", "is not a subclass of ServedModel"),
        ("ray_model_serving.model:ServedModel", "can't be created"),
    ],
)
def test_a_model_class_that_can_not_be_used_is_named(make_args, path, text):
    settings = ServingSettings.from_mapping(make_args({"model_class": path}))
    with pytest.raises(BadModelClassError) as caught:
        create_model(settings.models[0])
    assert path in str(caught.value)
    assert text in str(caught.value)


def test_a_model_is_loaded_warmed_up_and_asked_with_a_report_of_every_phase(make_worker):
    worker = make_worker()
    worker.load()
    worker.warm_up()
    assert worker.predict([1, 2]) == [5.0, 10.0]
    assert worker.phase is None
    assert set(worker.report["seconds"]) == {
        *("resolve", "wait", "download", "verify", "commit", "map", "convert", "transfer", "warm_up", "total")
    }
    assert worker.report["seconds"]["total"] > 0
    assert worker.report["memory"]["model_bytes"] == 4
    assert worker.report["snapshot_id"] == worker.snapshot_id


def test_a_failing_load_can_be_tried_again(make_worker, tmp_path):
    worker = make_worker(uri=f"file://{tmp_path}/missing/")
    for _ in range(2):
        with pytest.raises(DirectoryNotFoundError):
            worker.load()
    assert worker.report is None


def test_the_memory_peak_of_a_replica_counts_its_warm_up(make_worker):
    worker = make_worker(model_class="serving_fakes:Hungry")
    worker.load()
    after_load = worker.report["memory"]["peak_anon_bytes"]
    worker.warm_up()
    taken = worker.report["memory"]["peak_anon_bytes"] - after_load
    assert taken > 32 * 1024**2, "mapped weights and work spaces become resident when the model first runs"
