"""Shared by the serving library's tests: one S3 emulator, a recording proxy, and a bucket of each test's own."""

import itertools
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from emulators import RecordingProxy, S3Emulator, recording_proxy, s3_emulator
from emulators.models import Bucket
from emulators.s3 import ENVIRONMENT

_bucket_numbers = itertools.count()


@pytest.fixture(autouse=True)
def aws_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the credentials, the profile or the endpoint of whoever runs it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Emulator]:
    with s3_emulator() as emulator:
        yield emulator


@pytest.fixture
def proxy(s3: S3Emulator) -> Iterator[RecordingProxy]:
    """Each test has its own, so that it counts only its own requests."""
    with recording_proxy(s3.endpoint_url) as running:
        yield running


@pytest.fixture
def bucket(s3: S3Emulator) -> Bucket:
    name = f"models-{next(_bucket_numbers)}"
    s3.client().create_bucket(Bucket=name)
    return Bucket(name, s3)


@pytest.fixture
def as_user_without_rights() -> Callable[[Path], AbstractContextManager[int]]:
    """Act as a user who may not write to a directory, also where the tests run as root; gives that uid."""

    @contextmanager
    def act(directory: Path) -> Generator[int]:
        before, mode = os.geteuid(), directory.stat().st_mode
        directory.chmod(0o555)
        if before == 0:
            os.seteuid(65534)
        try:
            yield os.geteuid()
        finally:
            os.seteuid(before)
            directory.chmod(mode)

    return act
