"""The list that ``ray-model fetch --list`` reads: the models of a node, as the infrastructure renders them."""

import json
from dataclasses import dataclass
from pathlib import Path

from ray_model_serving.contract.problems import Problems
from ray_model_serving.contract.reading import read, setting
from ray_model_serving.contract.settings import DEFAULT_EXCLUDE, uri_problem


@dataclass(frozen=True, kw_only=True)
class ListedModel:
    """One model to fetch; the names and rules are those of ``ModelSettings``."""

    uri: str = setting(doc="s3://bucket/prefix/ or file:///directory/", check=uri_problem)
    include: tuple[str, ...] = setting(("*",), doc="file patterns to fetch", min_items=1)
    exclude: tuple[str, ...] = setting(DEFAULT_EXCLUDE, doc="file patterns to leave out")
    snapshot_id: str | None = setting(None, doc="pins the model's content", pattern=r"[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class PrefetchList:
    """May be empty: a node whose models are all in the image has nothing to fetch."""

    models: tuple[ListedModel, ...] = setting(doc="the models to fetch")
    cache_budget_bytes: int | None = setting(None, doc="most bytes that the cache may hold", minimum=0)
    connections: int | None = setting(None, doc="connections of one fetch; none: a default", minimum=1, maximum=256)
    rate_cap_bytes_per_s: int | None = setting(None, doc="most that downloads of the node take", minimum=1024**2)


def read_list(path: Path) -> PrefetchList:
    """Raises :class:`SettingsError` with every problem of the file."""
    problems = Problems(f"list {path}")
    document: object = None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.add(str(path), f"can't be read: {error.strerror}")
    except ValueError as error:
        problems.add(str(path), f"is not JSON: {error}")
    problems.raise_if_any()
    found = read(PrefetchList, document, "", problems)
    problems.raise_if_any()
    assert found is not None  # read() returns None only after it reported a problem
    return found
