"""``ray-model batch``: a model over files of records, as a Ray Data job."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ray_model_serving.cli.output import NegativeVerdict, UsageError, guarded, print_json
from ray_model_serving.contract.settings import ServingSettings
from ray_model_serving.serving.batch.plan import OnBadRow, OtherBatchError


def batch(
    settings: Annotated[
        Path, typer.Option("--settings", help="YAML or JSON: ServingSettings, or the config of `serve deploy`.")
    ],
    source: Annotated[str, typer.Option("--input", help="s3:// or file:// folder, or one .parquet or .jsonl file.")],
    target: Annotated[str, typer.Option("--output", help="s3:// or file:// folder; a file for each input file.")],
    model: Annotated[str | None, typer.Option("--model", help="Name in the settings, where there are several.")] = None,
    column: Annotated[str, typer.Option("--column", help="Column that the model gets.")] = "text",
    output_column: Annotated[str, typer.Option("--output-column", help="Column with the answers.")] = "output",
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=1000, help="Actors, each with a model.")] = 1,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Rows of one pass; default limits.max_batch_size.")
    ] = None,
    on_bad_row: Annotated[
        OnBadRow, typer.Option("--on-bad-row", help="Fail its file, leave it out, or keep it with null.")
    ] = OnBadRow.FAIL,
    fresh: Annotated[
        bool, typer.Option("--fresh/--resume", help="Replace what earlier jobs wrote there, or go on from it.")
    ] = False,
    endpoint_url: Annotated[
        str | None, typer.Option("--endpoint-url", help="S3 endpoint; without it AWS_ENDPOINT_URL.")
    ] = None,
    address: Annotated[
        str, typer.Option("--address", help="auto: the cluster that is here, else a local one.")
    ] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")
    ] = False,
) -> None:
    """Put a column of Parquet or JSON Lines files through a model; each output has its input's columns and one more.

    Run it again after an interruption: files that are done are skipped, changed inputs are done anew. Needs the extra
    [batch]. Exit code 0: all is done. 1: a file failed. 2: bad input.

    Example: ray-model batch --settings app.yaml --input s3://data/texts/ --output s3://data/vectors/ --on-bad-row keep
    """

    def run() -> None:
        from ray_model_serving.serving.batch import job

        job.check_installed()
        order = job.Order(
            settings=_settings(settings),
            model=model,
            input_uri=source,
            output_uri=target,
            column=column,
            output_column=output_column,
            on_bad_row=on_bad_row,
            concurrency=concurrency,
            batch_size=batch_size,
            fresh=fresh,
            endpoint_url=endpoint_url,
            address=address,
        )
        started = time.monotonic()
        try:
            prepared, plan = job.prepare(order)
        except OtherBatchError as error:
            bad = UsageError(error.message, hint=error.hint)
            bad.kind = error.kind
            raise bad from error
        ended: list[dict[str, Any]] = []
        with _progress(len(plan.todo)) as show:

            def tell(result: dict[str, Any]) -> None:
                ended.append(result)
                show(result)

            job.compute(prepared, plan.todo, order, tell)
        document = _document(ended, [file.name for file in plan.done], prepared.work.to_json(), started)
        _print(document, as_json)

    guarded(run, as_json, if_interrupted="run it again: files that are done are skipped")


def _settings(path: Path) -> ServingSettings:
    import yaml

    try:
        found: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        hint = "a YAML or JSON file with the application's settings"
        raise UsageError(f"--settings: {path}: {reason}", hint=hint) from error
    if isinstance(found, dict) and "applications" in found:
        applications = cast("dict[str, Any]", found)["applications"]
        if not isinstance(applications, list) or len(cast("list[Any]", applications)) != 1:
            raise UsageError(
                f"--settings: {path} has several applications or none", hint="give the args of one of them as a file"
            )
        first: Any = cast("list[Any]", applications)[0]
        found = cast("dict[str, Any]", first).get("args") if isinstance(first, dict) else None
    return ServingSettings.from_mapping(found)


@contextmanager
def _progress(files: int) -> Generator[Callable[[dict[str, Any]], None]]:
    """A bar on a terminal, a line a file elsewhere; on stderr."""
    console = Console(stderr=True)
    if console.is_terminal and files:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("files", total=files)

            def advance(result: dict[str, Any]) -> None:
                del result
                bar.advance(task)

            yield advance
        return
    done = 0

    def tell(result: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        typer.echo(f"{done} of {files}: {_line(result)}", err=True)

    yield tell


def _line(result: dict[str, Any]) -> str:
    name = result["input"]["name"]
    if "error" in result:
        return f"{name}: failed: {result['error']['message']}"
    return f"{name}: {result['rows']} rows, {result['bad_rows']} bad, {result['seconds']:.1f} s"


def _document(ended: list[dict[str, Any]], skipped: list[str], work: dict[str, str], started: float) -> dict[str, Any]:
    loads = {result.pop("pid"): result.pop("load") for result in ended if "load" in result}
    done = [result for result in ended if "error" not in result]
    files: list[dict[str, Any]] = [{**result, "skipped": False} for result in ended]
    files += [{"input": {"name": name}, "skipped": True} for name in skipped]
    return {
        "done": len(done) == len(ended),
        "work": work,
        "files": sorted(files, key=lambda file: file["input"]["name"]),
        "totals": {
            "files": len(done),
            "skipped": len(skipped),
            "failed": len(ended) - len(done),
            "rows": sum(result["rows"] for result in done),
            "rows_written": sum(result["rows_written"] for result in done),
            "bad_rows": sum(result["bad_rows"] for result in done),
            "seconds": round(time.monotonic() - started, 3),
        },
        "loads": list(loads.values()),
    }


def _print(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        for file in document["files"]:
            if "error" in file:
                typer.echo(_line(file))
            for problem in file.get("problems", ()):
                typer.echo(f"{file['input']['name']}, {problem}")
        totals = document["totals"]
        typer.echo(
            f"{totals['files']} files done, {totals['skipped']} were there, {totals['failed']} failed; "
            f"{totals['rows']} rows, {totals['bad_rows']} bad, {totals['seconds']:.1f} s"
        )
    if not document["done"]:
        raise NegativeVerdict
