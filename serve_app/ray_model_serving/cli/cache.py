"""``ray-model cache``: what is on the node, whether it is still right, and what may go."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ray_model_serving.cli.output import NegativeVerdict, UsageError, amount, guarded, print_json
from ray_model_serving.contract.paths import CACHE_MOUNT_PATH
from ray_model_serving.store.disk import free_bytes
from ray_model_serving.store.eviction import CacheItem, EvictionPlan, plan_eviction
from ray_model_serving.store.inventory import Inventory, Verification, inventory, verify

app = typer.Typer(name="cache", no_args_is_help=True, help="The node's cache: list, verify, prune.")

CacheOption = Annotated[Path, typer.Option("--cache-dir", help="Root of the node's cache.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]


@app.command("list")
def list_items(cache_dir: CacheOption = Path(CACHE_MOUNT_PATH), as_json: JsonOption = False) -> None:
    """Show what the cache holds, in the order in which it would be evicted.

    Exit code 0. 2: there is no such directory.

    Example: ray-model cache list --cache-dir /mnt/model-cache
    """
    guarded(lambda: _list(cache_dir, as_json), as_json)


@app.command("verify")
def verify_snapshots(cache_dir: CacheOption = Path(CACHE_MOUNT_PATH), as_json: JsonOption = False) -> None:
    """Read every byte of every snapshot again and compare it with the store's checksums. Changes nothing.

    Exit code 0: all are right. 1: at least one is not; the next fetch replaces those that are not whole.

    Example: ray-model cache verify --json
    """
    guarded(lambda: _verify(cache_dir, as_json), as_json)


@app.command()
def prune(
    budget_bytes: Annotated[
        int, typer.Option("--budget-bytes", min=0, help="Most bytes that may stay; 0: only what is in use.")
    ],
    cache_dir: CacheOption = Path(CACHE_MOUNT_PATH),
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Without this the plan is only shown.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what has to go for the cache to fit, and with --yes remove it: unfinished downloads, compile caches, then
    the snapshots that were used least recently. Never what is in use.

    Exit code 0: it fits then. 1: it does not, since what is in use is more.

    Example: ray-model cache prune --budget-bytes 100000000000 --yes
    """
    guarded(lambda: _prune(cache_dir, budget_bytes, yes, as_json), as_json)


def _read(cache_dir: Path) -> Inventory:
    if not cache_dir.is_dir():
        raise UsageError(f"--cache-dir: {cache_dir} is not a directory", hint="name the root of a node's cache")
    return inventory(cache_dir)


def _list(cache_dir: Path, as_json: bool) -> None:
    found = _read(cache_dir)
    free = free_bytes(cache_dir)
    document = {
        "root": str(found.layout.root),
        "bytes": found.size_bytes,
        "free_bytes": free,
        "items": [_item(item, found) for item in found.items],
    }
    if as_json:
        print_json(document)
        return
    for item in found.items:
        typer.echo(_line(item, found))
    typer.echo(f"{amount(found.size_bytes)} in the cache, {amount(free)} free on its disk")


def _item(item: CacheItem, found: Inventory) -> dict[str, Any]:
    return {
        "kind": item.kind.value,
        "name": item.path.name,
        "bytes": item.size_bytes,
        "last_used": datetime.fromtimestamp(item.last_used_s, UTC).isoformat(timespec="seconds"),
        "in_use": item.in_use,
        "source": found.sources.get(item.path.name),
    }


def _line(item: CacheItem, found: Inventory) -> str:
    used = "in use" if item.in_use else datetime.fromtimestamp(item.last_used_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    source = found.sources.get(item.path.name, "")
    return f"{item.kind.value:<9} {item.path.name}  {amount(item.size_bytes):>10}  {used}  {source}".rstrip()


def _verify(cache_dir: Path, as_json: bool) -> None:
    _read(cache_dir)
    outcomes: list[Verification] = []
    for outcome in verify(cache_dir):
        outcomes.append(outcome)
        if not as_json:
            state = outcome.problem or f"right, {amount(outcome.size_bytes)}"
            typer.echo(f"{outcome.snapshot_id}: {state}")
    wrong = [outcome.snapshot_id for outcome in outcomes if outcome.problem]
    if as_json:
        print_json(
            {
                "ok": not wrong,
                "snapshots": [
                    {
                        "snapshot_id": outcome.snapshot_id,
                        "source": outcome.source,
                        "bytes": outcome.size_bytes,
                        "ok": not outcome.problem,
                        "problem": outcome.problem,
                        "files_by_check": outcome.files_by_check,
                    }
                    for outcome in outcomes
                ],
            }
        )
    if wrong:
        raise NegativeVerdict


def _prune(cache_dir: Path, budget_bytes: int, yes: bool, as_json: bool) -> None:
    found = _read(cache_dir)
    plan = plan_eviction(found.layout, found.items, free_bytes=found.size_bytes - budget_bytes)
    freed = plan.execute() if yes else 0
    fits = found.size_bytes - (freed if yes else plan.freed_bytes) <= budget_bytes
    if as_json:
        print_json(
            {
                "executed": yes,
                "bytes": found.size_bytes,
                "budget_bytes": budget_bytes,
                "planned_bytes": plan.freed_bytes,
                "freed_bytes": freed,
                "fits": fits,
                "items": [_item(item, found) for item in plan.items],
            }
        )
    else:
        _print_plan(plan, found, budget_bytes, freed if yes else None)
    if not fits:
        raise NegativeVerdict


def _print_plan(plan: EvictionPlan, found: Inventory, budget_bytes: int, freed: int | None) -> None:
    for item in plan.items:
        typer.echo(f"{'would remove' if freed is None else 'removed'}  {_line(item, found)}")
    typer.echo(f"{amount(found.size_bytes)} in the cache, budget {amount(budget_bytes)}")
    if plan.short_bytes:
        typer.echo(f"{amount(plan.short_bytes)} over the budget are in use")
    if freed is None and plan.items:
        typer.echo("nothing was removed; --yes does it")
