"""ModelStore: a model's URI in, a whole snapshot on this node out, with one download per node.

Look-up order: the image (``baked_root``), the node's cache, the store. ``file://`` is used in place.
"""

import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ray_model_serving.contract.cache_format import CacheLayout, Manifest
from ray_model_serving.contract.settings import DEFAULT_EXCLUDE
from ray_model_serving.contract.uris import FileUri, S3Uri, parse_model_uri
from ray_model_serving.store import cache
from ray_model_serving.store.directory import resolve_directory
from ray_model_serving.store.disk import typed_errors
from ray_model_serving.store.errors import (
    CacheChangedError,
    ObjectReplacedError,
    SnapshotMismatchError,
)
from ray_model_serving.store.file_checks import check_files
from ray_model_serving.store.locks import HeldLock, open_lock
from ray_model_serving.store.options import TransferOptions, connections_for
from ray_model_serving.store.progress import Fetch, OnProgress
from ray_model_serving.store.report import Snapshot, snapshot_of
from ray_model_serving.store.staging import sweep
from ray_model_serving.store.waiting import LOOK_UP_TRIES, POLL_S, held_whole, wait_for_whole

if TYPE_CHECKING:
    from ray_model_serving.store.s3_source import S3Source

DEFAULT_DEADLINE_S = 3600.0
DEFAULT_STALL_S = 30.0


class ModelStore:
    """Resolves and fetches models. Safe to use from many processes of a node at once; one object, one thread at a time.

    ``connections`` bounds the requests at once; without it they follow from ``network_gbps``, the node's network
    baseline, and without both there are 16. Memory in flight is half a MiB a connection. ``max_bytes_per_s`` caps all
    downloads into this cache together: those that have it share it in equal parts, across processes and pods.
    ``cache_budget_bytes`` is the most that the cache may hold, kept by evicting what is not in use; without it only the
    disk's free space counts. A connection that brings less than half a MiB in ``stall_s`` is given up. ``deadline_s``
    bounds one whole ``resolve`` or ``ensure``, waits and retries included. With ``expected_role_arn`` nothing is read
    under any other identity. ``endpoint_url`` is used for S3 and STS; without it AWS_ENDPOINT_URL and the AWS profile
    decide.
    """

    def __init__(
        self,
        cache_root: Path,
        *,
        baked_root: Path | None = None,
        endpoint_url: str | None = None,
        connections: int | None = None,
        network_gbps: float | None = None,
        max_bytes_per_s: float | None = None,
        cache_budget_bytes: int | None = None,
        expected_role_arn: str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        stall_s: float = DEFAULT_STALL_S,
    ) -> None:
        self._layout = CacheLayout(Path(cache_root).absolute())
        self._baked = CacheLayout(Path(baked_root).absolute()) if baked_root else None
        self._endpoint_url = endpoint_url
        self._options = TransferOptions(
            connections=connections or connections_for(network_gbps), stall_s=stall_s, max_bytes_per_s=max_bytes_per_s
        )
        self._budget_bytes = cache_budget_bytes
        self._expected_role_arn = expected_role_arn
        self._deadline_s = deadline_s

    def resolve(
        self, uri: str, *, include: Sequence[str] = ("*",), exclude: Sequence[str] = DEFAULT_EXCLUDE
    ) -> Manifest:
        """What the model consists of now; no file content is read. Raises the errors of ``store.errors``."""
        return self._resolve(parse_model_uri(uri), include, exclude, time.monotonic() + self._deadline_s)

    def ensure(
        self,
        uri: str,
        *,
        include: Sequence[str] = ("*",),
        exclude: Sequence[str] = DEFAULT_EXCLUDE,
        snapshot_id: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> Snapshot:
        """A whole snapshot of the model on this node, held by a shared lock until it is closed.

        ``snapshot_id`` pins the content: a snapshot of that id on the node or in the image is used without asking the
        store, and anything else in the store is refused. ``on_progress`` is called in this thread, a few times a
        second. Raises the errors of ``store.errors``; whatever happens, no partial snapshot becomes visible.
        """
        parsed = parse_model_uri(uri)
        fetch = Fetch(deadline=time.monotonic() + self._deadline_s, on_progress=on_progress)
        if isinstance(parsed, FileUri):
            return self._use_in_place(parsed, include, exclude, snapshot_id, fetch)
        if self._expected_role_arn:
            self._s3.check_identity(self._expected_role_arn, fetch.deadline)
        sweep(self._layout)
        if snapshot_id:
            held = self._look_up(snapshot_id, fetch)
            if held is not None:
                return held
        try:
            return self._ensure_from_store(parsed, include, exclude, snapshot_id, fetch)
        except (ObjectReplacedError, CacheChangedError):
            # Someone uploads or evicts right now. Once more from a new listing, then the error stands.
            return self._ensure_from_store(parsed, include, exclude, snapshot_id, fetch)

    def read_start(self, uri: str, path: str, length: int) -> bytes:
        """The first ``length`` bytes of one file of a model, past the cache; for headers."""
        parsed = parse_model_uri(uri)
        if isinstance(parsed, S3Uri):
            return self._s3.read_start(parsed, path, length, time.monotonic() + self._deadline_s)
        with typed_errors(Path(parsed.path) / path), (Path(parsed.path) / path).open("rb") as file:
            return file.read(length)

    # -- where a snapshot can be ------------------------------------------------------------------------------------

    def _use_in_place(
        self, uri: FileUri, include: Sequence[str], exclude: Sequence[str], pin: str | None, fetch: Fetch
    ) -> Snapshot:
        with fetch.phase("resolve"):
            manifest = resolve_directory(uri, include, exclude)
        _check_pin(pin, manifest)
        with typed_errors(Path(uri.path)), fetch.phase("verify", manifest.size_bytes):
            check_files(Path(uri.path), [entry.path for entry in manifest.files], str(uri))
        return snapshot_of(Path(uri.path), manifest, fetch.finished(), source="node")

    def _look_up(self, identity: str, fetch: Fetch, resolved: Manifest | None = None) -> Snapshot | None:
        """The image, then the node's cache; None where neither has it whole."""
        if found := self._in_image(identity, fetch, resolved):
            return found
        if cache.find_whole(self._layout, identity, resolved) is None:
            return None
        lock = open_lock(self._layout.lock(identity))
        for _ in range(LOOK_UP_TRIES):
            if lock.try_shared():
                if manifest := cache.find_whole(self._layout, identity, resolved):
                    lock.mark_use()
                    return snapshot_of(
                        self._layout.snapshot(identity), manifest, fetch.finished(), source="node", lock=lock
                    )
                break
            time.sleep(POLL_S)  # whoever sweeps or evicts holds it for a moment
        lock.release()
        return None

    def _in_image(self, identity: str, fetch: Fetch, resolved: Manifest | None) -> Snapshot | None:
        if self._baked and (manifest := cache.find_whole(self._baked, identity, resolved)):
            return snapshot_of(self._baked.snapshot(identity), manifest, fetch.finished(), source="image")
        return None

    def _ensure_from_store(
        self, uri: S3Uri, include: Sequence[str], exclude: Sequence[str], pin: str | None, fetch: Fetch
    ) -> Snapshot:
        """With a pin the lock comes first: of many replicas that start at once only one asks the store anything."""
        manifest = None
        if pin is None:
            manifest = self._resolved(uri, include, exclude, pin, fetch)
            held = self._look_up(manifest.snapshot_id, fetch, manifest)
            if held is not None:
                return held
        identity = manifest.snapshot_id if manifest else pin
        assert identity
        cache.prepare(self._layout)
        lock = open_lock(self._layout.lock(identity))
        try:
            with fetch.phase("wait", manifest.size_bytes if manifest else 0):
                is_whole = wait_for_whole(self._layout, lock, identity, manifest, deadline=fetch.deadline)
            fetched = 0
            if not is_whole:
                if manifest is None:
                    manifest = self._resolved(uri, include, exclude, pin, fetch)
                    if found := self._in_image(identity, fetch, manifest):
                        lock.release()
                        return found
                if cache.find_whole(self._layout, identity, manifest) is None:
                    fetched = self._fetch(uri, manifest, lock, fetch)
            whole = held_whole(self._layout, lock, identity, manifest)
            if whole is None:
                raise CacheChangedError(
                    f"snapshot {identity} was evicted in the moment between its download and its use",
                    hint="try again; a cache budget that holds only one model at a time makes this likely",
                )
            lock.mark_use()
            path = self._layout.snapshot(identity)
            return snapshot_of(path, whole, fetch.finished(), source="node", lock=lock, fetched_bytes=fetched)
        except BaseException:
            lock.release()
            raise

    def _fetch(self, uri: S3Uri, manifest: Manifest, lock: HeldLock, fetch: Fetch) -> int:
        from ray_model_serving.store.fetching import fetch_snapshot  # boto3, which cached models never need

        return fetch_snapshot(
            self._s3, self._layout, uri, manifest,
            lock=lock, options=self._options, budget_bytes=self._budget_bytes, fetch=fetch,
        )  # fmt: skip

    def _resolved(
        self, uri: S3Uri, include: Sequence[str], exclude: Sequence[str], pin: str | None, fetch: Fetch
    ) -> Manifest:
        with fetch.phase("resolve"):
            manifest = self._resolve(uri, include, exclude, fetch.deadline)
        _check_pin(pin, manifest)
        return manifest

    def _resolve(
        self, uri: S3Uri | FileUri, include: Sequence[str], exclude: Sequence[str], deadline: float
    ) -> Manifest:
        if isinstance(uri, FileUri):
            return resolve_directory(uri, include, exclude)
        return self._s3.resolve(uri, include, exclude, deadline)

    @cached_property
    def _s3(self) -> "S3Source":
        # boto3 takes half a second to import, and file:// and cached models never need it.
        from ray_model_serving.store.s3_source import S3Source

        return S3Source(endpoint_url=self._endpoint_url, connections=self._options.connections)


def _check_pin(pin: str | None, manifest: Manifest) -> None:
    if pin and pin != manifest.snapshot_id:
        raise SnapshotMismatchError(
            f"{manifest.source}: holds snapshot {manifest.snapshot_id}, the pin names {pin}",
            hint="the objects, or the include and exclude patterns, are not those that were pinned; "
            "ray-model inspect prints the id",
        )
