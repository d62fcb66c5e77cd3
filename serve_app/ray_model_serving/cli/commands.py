"""The commands' work, apart from how options are declared."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import typer

from ray_model_serving.cli.inspection import inspection, print_inspection
from ray_model_serving.cli.output import SomeFailedError, UsageError, amount, print_json, progress
from ray_model_serving.cli.prefetch_list import ListedModel, read_list
from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.settings import Device, Dtype
from ray_model_serving.model import ServedModel
from ray_model_serving.model_class import BadModelClassError, new_model
from ray_model_serving.store import ModelStore, Snapshot
from ray_model_serving.store.report import joined


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Where a model is asked for and what of it."""

    endpoint_url: str | None = None
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    snapshot_id: str | None = None
    cache_budget_bytes: int | None = None
    rate_cap_bytes_per_s: int | None = None
    connections: int | None = None


def inspect(uri: str, selection: Selection, as_json: bool) -> None:
    """Print what a model is and needs."""
    # No cache is touched; the path is only a place that a store must have.
    store = ModelStore(Path(), endpoint_url=selection.endpoint_url)
    document = inspection(store, uri, selection.include, selection.exclude)
    if as_json:
        print_json(document)
    else:
        print_inspection(document)


def fetch(uri: str | None, list_file: Path | None, cache_dir: Path, selection: Selection, as_json: bool) -> None:
    """Fetch one model, or every model of a list."""
    if (uri is None) == (list_file is None):
        raise UsageError(
            "give either a URI or --list FILE, not both and not neither", hint="ray-model fetch --help has examples"
        )
    if list_file is not None:
        listed = read_list(list_file)
        if selection.cache_budget_bytes is None:
            selection = replace(selection, cache_budget_bytes=listed.cache_budget_bytes)
        if selection.rate_cap_bytes_per_s is None:
            selection = replace(selection, rate_cap_bytes_per_s=listed.rate_cap_bytes_per_s)
        selection = replace(selection, connections=listed.connections)
        _fetch_list(listed.models, cache_dir, selection, as_json)
        return
    with _ensure(cast("str", uri), cache_dir, selection) as snapshot:
        _print_report(snapshot.report.to_json(), as_json)


def load(
    uri: str,
    cache_dir: Path,
    selection: Selection,
    model_class: str | None,
    dtype: Dtype,
    device: Device,
    as_json: bool,
) -> None:
    """Fetch and load one model, and print what both cost."""
    model = _new_model(model_class) if model_class else None
    with _ensure(uri, cache_dir, selection) as snapshot:
        # torch takes seconds to import; a bad option or a failed fetch should not wait for it.
        from ray_model_serving.loading import load as load_snapshot
        from ray_model_serving.loading.plain import build_plain

        if model:
            model.directory = snapshot.path
        loaded = load_snapshot(
            snapshot,
            model.build if model else build_plain(snapshot),
            dtype=dtype,
            device=device,
            ignore_keys=model.ignore_keys if model else (),
        )
        _print_report(joined(snapshot.report.to_json(), loaded.report.to_json()), as_json)


def _new_model(import_path: str) -> ServedModel:
    try:
        return new_model(import_path)
    except BadModelClassError as error:
        raise UsageError(f"--model-class: {error.message}", hint=error.hint) from error


def _ensure(uri: str, cache_dir: Path, selection: Selection) -> Snapshot:
    store = ModelStore(
        cache_dir,
        endpoint_url=selection.endpoint_url,
        connections=selection.connections,
        cache_budget_bytes=selection.cache_budget_bytes,
        max_bytes_per_s=selection.rate_cap_bytes_per_s,
    )
    with progress(uri) as listener:
        return store.ensure(
            uri,
            include=selection.include,
            exclude=selection.exclude,
            snapshot_id=selection.snapshot_id,
            on_progress=listener,
        )


def _fetch_list(models: Sequence[ListedModel], cache_dir: Path, selection: Selection, as_json: bool) -> None:
    outcomes: list[dict[str, Any]] = []
    errors: list[ModelServingError] = []
    for model in models:
        wanted = replace(selection, include=model.include, exclude=model.exclude, snapshot_id=model.snapshot_id)
        try:
            with _ensure(model.uri, cache_dir, wanted) as snapshot:
                outcomes.append({"uri": model.uri, **snapshot.report.to_json()})
        except ModelServingError as error:
            errors.append(error)
            outcomes.append({"uri": model.uri, **error.to_json()})
        if not as_json:
            _print_outcome(outcomes[-1])
    document: dict[str, Any] = {"models": outcomes}
    failure = _failure(errors, len(models))
    if as_json:
        print_json({**document, **(failure.to_json() if failure else {})})
    if failure:
        raise failure


def _failure(errors: Sequence[ModelServingError], total: int) -> ModelServingError | None:
    if not errors:
        return None
    texts = "".join(f"\n  - {error}" for error in errors)
    failure = SomeFailedError(f"{len(errors)} of {total} models failed:{texts}", hint="the others are in the cache")
    failure.permanent = any(error.permanent for error in errors)
    return failure


def _print_outcome(outcome: dict[str, Any]) -> None:
    if "error" not in outcome:
        _print_report(outcome, as_json=False)


def _print_report(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    typer.echo(f"{report.get('uri', 'snapshot')}: {report['snapshot_id']} in {report['path']}")
    sources = [f"{amount(size)} from the {source}" for source, size in report["bytes"].items() if size]
    typer.echo(f"  bytes    {', '.join(sources) or 'none'}")
    phases = [f"{phase} {seconds:.2f}" for phase, seconds in report["seconds"].items() if seconds or phase == "total"]
    typer.echo(f"  seconds  {', '.join(phases)}")
    typer.echo(f"  checked  {', '.join(f'{count} files by {by}' for by, count in report['files_by_check'].items())}")
    if memory := report.get("memory"):
        typer.echo(
            f"  memory   model {amount(memory['model_bytes'])}, peak anonymous {amount(memory['peak_anon_bytes'])}, "
            f"peak file-backed {amount(memory['peak_file_bytes'])}"
        )
