"""Requests to a Serve application from a process of their own: open loop at a rate, or closed loop with some clients.

As a program it prints ``ready``, starts when a line comes in, stops early at a second one where it sends at a rate, and
prints what became of every request.
"""

import argparse
import asyncio
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.children import Child

BODY = b'{"inputs": [0]}'
OK = 200
REFUSED = (429, 503)
NOT_SENT = -1
"""The status of a request that found ``limit`` others without an answer."""
NO_ANSWER = 0


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request. ``status`` is HTTP's, or NO_ANSWER or NOT_SENT."""

    sent_s: float
    status: int
    latency_s: float
    version: str

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def refused(self) -> bool:
        return self.status in REFUSED

    @property
    def ended_s(self) -> float:
        return self.sent_s + self.latency_s


@dataclass(frozen=True, kw_only=True)
class Load:
    """What to send, for ``seconds``, and how long to wait for what is still without an answer then.

    ``rate`` requests a second in equal steps whatever becomes of them, or without one ``clients`` that each wait for
    their answer before the next request. At most ``limit`` wait for an answer.
    """

    url: str
    seconds: float
    rate: float | None = None
    clients: int = 1
    limit: int = 4000
    patience_s: float = 3.0

    def start(self) -> Child:
        """The process, which waits for :meth:`Child.go`; :func:`requests` reads its result."""
        return Child("benchmarks.serving_load", [json.dumps(self.__dict__)])

    def run(self) -> list[Request]:
        """All of it, from start to end."""
        with self.start() as child:
            child.await_ready()
            child.go()
            return requests(child)


def requests(child: Child) -> list[Request]:
    """What a child that was told to go sent, in the order of sending."""
    return sorted(
        (
            Request(sent_s=sent, status=status, latency_s=latency, version=version)
            for sent, status, latency, version in child.result()["requests"]
        ),
        key=lambda one: one.sent_s,
    )


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that ``part`` of all do not exceed; NaN without any."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else math.nan


def per_second(found: Sequence[Request], wanted: Callable[[Request], bool], start_s: float, seconds: int) -> list[int]:
    """How many ended in each second since ``start_s``."""
    counts = [0] * seconds
    for one in found:
        second = math.floor(one.ended_s - start_s)
        if wanted(one) and 0 <= second < seconds:
            counts[second] += 1
    return counts


class _Client:
    def __init__(self, session: Any, load: Load) -> None:
        self._session = session
        self._load = load
        self._found: list[tuple[float, int, float, str]] = []
        self._open: set[asyncio.Task[None]] = set()
        self.enough = False
        """Nothing more is sent once this is set."""

    async def send(self) -> None:
        status, version, sent = NO_ANSWER, "", time.monotonic()
        try:
            async with self._session.post(self._load.url, data=BODY) as answer:
                body = await answer.read()
                status = answer.status
                if status == OK:
                    version = str(json.loads(body)["outputs"][0])
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            self._found.append((sent, status, time.monotonic() - sent, version))

    async def at_rate(self, rate: float) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        for number in range(math.floor(rate * self._load.seconds)):
            await asyncio.sleep(max(0.0, start + number / rate - loop.time()))
            if self.enough:
                break
            if len(self._open) >= self._load.limit:
                self._found.append((time.monotonic(), NOT_SENT, 0.0, ""))
                continue
            task = asyncio.create_task(self.send())
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def by_clients(self) -> None:
        end = time.monotonic() + self._load.seconds

        async def one_after_the_other() -> None:
            while time.monotonic() < end:
                await self.send()

        self._open |= {asyncio.create_task(one_after_the_other()) for _ in range(self._load.clients)}
        await asyncio.sleep(self._load.seconds)

    async def run(self) -> list[tuple[float, int, float, str]]:
        await (self.at_rate(self._load.rate) if self._load.rate else self.by_clients())
        waiting = {task for task in self._open if not task.done()}
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=self._load.patience_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        return self._found


async def _run(load: Load) -> list[tuple[float, int, float, str]]:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"content-type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        client = _Client(session, load)
        print("ready", flush=True)
        if not await asyncio.to_thread(_told):
            sys.exit("the benchmark is gone")
        threading.Thread(target=_until_told, args=(client,), daemon=True).start()
        return await client.run()


def _told() -> bool:
    # Not sys.stdin: a thread that still reads it when the program ends holds its lock, and Python aborts.
    return bool(os.read(0, 1))


def _until_told(client: _Client) -> None:
    _told()  # or the end of the benchmark
    client.enough = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("load", help="the fields of Load as a JSON object")
    load = Load(**json.loads(parser.parse_args().load))
    print(json.dumps({"requests": asyncio.run(_run(load))}), flush=True)


if __name__ == "__main__":
    main()
