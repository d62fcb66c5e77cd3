"""How a snapshot becomes visible: what is synced before what, and what several do who put theirs there at once."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ray_model_serving.contract.cache_format import CacheLayout, FileEntry, Manifest
from ray_model_serving.store import cache
from ray_model_serving.store.disk import allocate
from ray_model_serving.store.errors import (
    CacheChangedError,
    CacheNotWritableError,
    IoFailedError,
    NoSpaceError,
)
from ray_model_serving.store.locks import HeldLock, open_lock
from ray_model_serving.store.staging import Staging, new_staging, sweep

CONTENT = {"config.json": b"{}", "sub/model.bin": b"\x01" * 5000}
MANIFEST = Manifest(
    source="s3://b/m/",
    files=tuple(FileEntry(path=path, key=path, size_bytes=len(data), etag="e") for path, data in CONTENT.items()),
)
IDENTITY = MANIFEST.snapshot_id


@pytest.fixture
def layout(tmp_path: Path) -> CacheLayout:
    layout = CacheLayout(tmp_path)
    cache.prepare(layout)
    return layout


def staged(layout: CacheLayout) -> Staging:
    staging = new_staging(layout, IDENTITY)
    for path, data in CONTENT.items():
        os.close(allocate(staging.files / path, len(data)))
        (staging.files / path).write_bytes(data)
    return staging


def publish(layout: CacheLayout) -> None:
    cache.publish(layout, staged(layout), MANIFEST, HeldLock(layout.lock(IDENTITY), None))


def put_broken(layout: CacheLayout) -> None:
    layout.snapshot(IDENTITY).mkdir()
    (layout.snapshot(IDENTITY) / "config.json").write_bytes(b"cut")


def test_everything_is_on_disk_before_the_record_and_the_record_before_the_rename(
    layout: CacheLayout, monkeypatch: pytest.MonkeyPatch
):
    # UR-080: after a power cut, what is visible is whole.
    staging, events = staged(layout), list[tuple[str, str]]()
    real_fsync, real_rename, real_write = os.fsync, Path.rename, Path.write_text

    def fsync(descriptor: int) -> None:
        events.append(("sync", str(Path(f"/proc/self/fd/{descriptor}").readlink()).removeprefix(f"{staging.files}")))
        real_fsync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        events.append(("rename", str(target)))
        return real_rename(path, target)

    def write_text(path: Path, *args, **kwargs) -> int:
        events.append(("write", str(path).removeprefix(f"{staging.files}")))
        return real_write(path, *args, **kwargs)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr(Path, "write_text", write_text)
    cache.publish(layout, staging, MANIFEST, open_lock(layout.lock(IDENTITY)))
    assert events == [
        ("sync", "/config.json"),
        ("sync", "/sub/model.bin"),
        ("write", "/snapshot.json"),
        ("sync", "/snapshot.json"),
        ("sync", "/sub"),
        ("sync", ""),
        ("rename", str(layout.snapshot(IDENTITY))),
        ("sync", str(layout.snapshots)),
    ]


def test_several_who_replace_a_broken_snapshot_at_once_all_end_with_a_whole_one(layout: CacheLayout):
    # UR-082: those who find it in use hold the lock shared, so nothing keeps them apart.
    errors = list[BaseException]()

    def run(staging: Staging, start: threading.Barrier) -> None:
        try:
            start.wait(20)
            cache.publish(layout, staging, MANIFEST, HeldLock(layout.lock(IDENTITY), None))
        except BaseException as error:
            errors.append(error)

    for _ in range(60):
        put_broken(layout)
        start = threading.Barrier(3)
        threads = [threading.Thread(target=run, args=(staged(layout), start)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert errors == []
        assert cache.find_whole(layout, IDENTITY) == MANIFEST
        layout.snapshot(IDENTITY).rename(layout.root / "done")
        sweep(layout)
        cache.remove(layout.root / "done")


def test_what_is_broken_again_meanwhile_is_moved_aside_again(layout: CacheLayout, monkeypatch: pytest.MonkeyPatch):
    real, left = cache.discard, [3]

    def discard(*arguments) -> None:
        real(*arguments)
        if left[0]:
            left[0] -= 1
            put_broken(layout)

    monkeypatch.setattr(cache, "discard", discard)
    put_broken(layout)
    publish(layout)
    assert cache.find_whole(layout, IDENTITY) == MANIFEST
    left[0] = 10**6
    cache.remove(layout.snapshot(IDENTITY))
    put_broken(layout)
    with pytest.raises(CacheChangedError):
        publish(layout)


def test_a_snapshot_that_became_whole_before_it_was_moved_aside_goes_back(layout: CacheLayout):
    publish(layout)
    inode = layout.snapshot(IDENTITY).stat().st_ino
    cache.discard(layout, MANIFEST, HeldLock(layout.lock(IDENTITY), None))
    assert layout.snapshot(IDENTITY).stat().st_ino == inode


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, NoSpaceError),
        (errno.EDQUOT, NoSpaceError),
        (errno.EACCES, CacheNotWritableError),
        (errno.EROFS, CacheNotWritableError),
        (errno.EIO, IoFailedError),
    ],
)
def test_what_the_system_refuses_while_publishing_is_a_typed_error(
    number: int, error: type[Exception], layout: CacheLayout, monkeypatch: pytest.MonkeyPatch
):
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(error, match=os.strerror(number)):
        publish(layout)
    assert not layout.snapshot(IDENTITY).exists()


def test_directories_are_writable_for_the_group_from_the_first_moment(layout: CacheLayout):
    before = os.umask(0o077)
    try:
        staging = staged(layout)
        lock = open_lock(layout.lock("a" * 32))
    finally:
        os.umask(before)
    for directory in (staging.path, staging.files, staging.files / "sub"):
        assert directory.stat().st_mode & 0o777 == 0o775, "another user of the group may have to remove it"
    assert lock.path.stat().st_mode & 0o777 == 0o664
    lock.release()


def test_only_what_downloads_leave_is_swept(layout: CacheLayout):
    ours = [layout.staging / f"{'a' * 32}.x", layout.staging / f"compiled-key.{'b' * 32}"]
    others = [layout.staging / name for name in (".probe-1234", "lost+found", "a" * 32, "notes.txt")]
    for path in (*ours, *others):
        path.mkdir()
    sweep(layout)
    assert [path.exists() for path in ours] == [False, False]
    assert all(path.exists() for path in others), "a probe of a process that starts right now is nobody's leftover"


def test_a_probe_that_somebody_else_removed_does_not_make_a_cache_unwritable(
    layout: CacheLayout, monkeypatch: pytest.MonkeyPatch
):
    real = Path.touch

    def touch_and_lose(path: Path) -> None:
        real(path)
        path.unlink()

    monkeypatch.setattr(Path, "touch", touch_and_lose)
    cache.prepare(layout)


def link(path: Path) -> None:
    (path.parents[1] / "elsewhere").write_text("precious")
    path.symlink_to(path.parents[1] / "elsewhere")


@pytest.mark.parametrize("put", [link, os.mkfifo, Path.mkdir])
def test_a_lock_file_that_is_no_file_is_not_opened_and_excludes_nobody(
    put: Callable[[Path], None], layout: CacheLayout
):
    path = layout.lock("a" * 32)
    put(path)
    lock = open_lock(path)
    assert lock.fd is None
    assert lock.try_exclusive()
    assert not lock.is_exclusive, "so nothing is removed on the word of this lock"
    lock.sign()
    if path.is_symlink():
        assert path.read_text() == "precious"
