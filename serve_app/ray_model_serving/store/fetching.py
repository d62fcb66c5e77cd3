"""One download of one snapshot: room, bytes, checks, the rename; or an error, and what a later run can go on with."""

from ray_model_serving.contract.cache_format import CacheLayout, Manifest
from ray_model_serving.contract.errors import ModelServingError
from ray_model_serving.contract.uris import S3Uri
from ray_model_serving.store import cache
from ray_model_serving.store.disk import remove, typed_errors
from ray_model_serving.store.download import Download
from ray_model_serving.store.errors import DigestMismatchError, ObjectReplacedError
from ray_model_serving.store.file_checks import check_digests, check_files
from ray_model_serving.store.journal import Journal
from ray_model_serving.store.locks import HeldLock
from ray_model_serving.store.options import TransferOptions, part_bytes_for
from ray_model_serving.store.parts import combined_checksums, merged, missing_parts, total_bytes
from ray_model_serving.store.progress import Fetch
from ray_model_serving.store.rate import node_rate_cap
from ray_model_serving.store.room import allocated
from ray_model_serving.store.s3_source import S3Source
from ray_model_serving.store.staging import Staging, adopt, left_of, new_staging


def fetch_snapshot(
    source: S3Source,
    layout: CacheLayout,
    uri: S3Uri,
    manifest: Manifest,
    *,
    lock: HeldLock,
    options: TransferOptions,
    budget_bytes: int | None,
    fetch: Fetch,
) -> int:
    """Download, check and publish; returns the bytes that came from the store, the rest an earlier run had left.

    ``lock`` is the snapshot's. Raises the errors of ``store.errors``; nothing partial becomes visible.
    """
    staging = None
    if lock.is_exclusive and left_of(layout, manifest.snapshot_id):
        with fetch.phase("verify", manifest.size_bytes):
            staging = adopt(layout, manifest, options.connections)
    with typed_errors(layout.staging):
        staging = staging or new_staging(layout, manifest.snapshot_id)
    try:
        with typed_errors(staging.path):
            return _fetch_into(staging, source, layout, uri, manifest, lock, options, budget_bytes, fetch)
    except BaseException as error:
        if not _is_worth_keeping(error):
            remove(staging.path)
        raise


def _fetch_into(
    staging: Staging,
    source: S3Source,
    layout: CacheLayout,
    uri: S3Uri,
    manifest: Manifest,
    lock: HeldLock,
    options: TransferOptions,
    budget_bytes: int | None,
    fetch: Fetch,
) -> int:
    fetched_bytes, computed = _download(source, layout, uri, manifest, staging, options, budget_bytes, fetch)
    with fetch.phase("verify", manifest.size_bytes):
        check_digests(staging.files, manifest, computed)
        check_files(staging.files, [entry.path for entry in manifest.files], manifest.source)
    with fetch.phase("commit", manifest.size_bytes):
        cache.publish(layout, staging, manifest, lock)
    return fetched_bytes


def _is_worth_keeping(error: BaseException) -> bool:
    """Whether a later run can go on from here: after an interrupt, or what may pass, as long as no byte is in doubt."""
    if isinstance(error, ModelServingError):
        return not error.permanent and not isinstance(error, DigestMismatchError | ObjectReplacedError)
    return not isinstance(error, Exception)


def _download(
    source: S3Source,
    layout: CacheLayout,
    uri: S3Uri,
    manifest: Manifest,
    staging: Staging,
    options: TransferOptions,
    budget_bytes: int | None,
    fetch: Fetch,
) -> tuple[int, dict[str, str]]:
    """Bytes that came from the store, and the checksums that came out of the parts, by path."""
    total, present = manifest.size_bytes, total_bytes(staging.present)
    with (
        fetch.phase("download", total),
        allocated(layout, staging, manifest, budget_bytes=budget_bytes, deadline=fetch.deadline),
        Journal(staging.path, manifest.snapshot_id, staging.present) as journal,
        node_rate_cap(layout.locks, options.max_bytes_per_s) as rate,
    ):
        download = Download(
            open_range=lambda part: source.open_range(uri, part),
            translate=lambda error, key: source.translate_key(uri, error, key),
            files=staging.files,
            journal=journal,
            options=options,
            deadline=fetch.deadline,
            rate=rate,
        )
        fetched = download.run(
            list(missing_parts(manifest.files, staging.present, part_bytes_for(total, options.connections))),
            manifest.source,
            lambda done: fetch.tell("download", present + done, total),
        )
    return download.done_bytes, combined_checksums(manifest.files, merged(staging.present, fetched))
