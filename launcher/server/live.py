"""What happens, sent as it happens: the lines of event logs, and what changes about jobs.

Each log that is watched is read by one reader, however many clients watch it, and each of its lines is made into a
message once. The latest messages wait in a ring of bounded size, through which each client goes at its own pace: a
client that the ring has overtaken, or that takes nothing for STALL_S, loses its connection and can come back with the
last `seq` that it has. What is older than the ring is read from the log, so nothing is lost, and nothing comes twice.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from launcher.core.bounded_parse import parse_json
from launcher.core.events import INVALID, Alert, to_line, writable
from launcher.core.files import open_file, read_lines
from launcher.server.jobs import Jobs

POLL_S = 0.05  # between two looks at the logs that are watched
JOBS_S = 0.5  # ... at the jobs
STALL_S = 15.0  # that a client may take for BURST messages
PING_S = 20.0  # of silence after which a message says that the connection stands
RING_LINES, RING_BYTES = 2_000, 2**22  # messages that wait for slow clients
PART_BYTES = 2**18  # of a log that a client catches up with at once
BURST = 32  # messages to one client before others have their turn
TRY_AGAIN, BEGUN_ANEW = 1013, 1012  # codes with which a connection is closed

Send = Callable[[str], Awaitable[None]]


class Overtaken(Exception):
    """A client is too slow; it may come back."""


class BegunAnew(Exception):
    """Another log is in the place of the one that was watched."""


class Ring:
    """The latest messages of a source; each has a number, which grows by one."""

    def __init__(self, next_number: int = 0) -> None:
        self.first = self.next = next_number
        self._kept, self._bytes = list[str](), 0
        self._changed, self.ended = asyncio.Event(), False

    def add(self, texts: list[str]) -> None:
        self._kept += texts
        self.next += len(texts)
        self._bytes += sum(map(len, texts))
        if len(self._kept) > 2 * RING_LINES or self._bytes > 2 * RING_BYTES:
            while len(self._kept) > RING_LINES or self._bytes > RING_BYTES:
                gone = max(len(self._kept) // 4, 1)
                self._bytes -= sum(map(len, self._kept[:gone]))
                del self._kept[:gone]
                self.first += gone
        self._wake()

    def end(self) -> None:
        """Whoever listens hears that nothing comes any more."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def since(self, number: int) -> list[str]:
        """Some messages from that one on. Raises `Overtaken` where it is gone, `BegunAnew` at the end."""
        if self.ended:
            raise BegunAnew
        if number < self.first:
            raise Overtaken
        return self._kept[number - self.first : number - self.first + BURST]

    async def changed(self, wait_s: float) -> bool:
        """Whether something came within that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                return await self._changed.wait()
        return False


@dataclass
class LogPosition:
    """A place in an event log, and how its lines are read on from there."""

    path: Path
    seq: int = 0
    offset: int = 0
    attempt: int = 1
    inode: int = 0

    def lines(self, most_bytes: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Whole lines from here on, with their byte; about `most_bytes` of them. Raises `BegunAnew`."""
        try:
            with open_file(self.path) as file:
                now = os.fstat(file.fileno())
                if now.st_size < self.offset or self.inode not in (0, now.st_ino):
                    raise BegunAnew
                self.inode = now.st_ino
                end = None if most_bytes is None else self.offset + most_bytes
                file.seek(self.offset)
                for line, size, ended in read_lines(file):
                    if not ended or (end is not None and self.offset >= end):
                        return
                    offset, self.seq, self.offset = self.offset, self.seq + 1, self.offset + size
                    yield offset, line
        except FileNotFoundError:  # not written yet
            if self.offset:
                raise BegunAnew from None

    def skip(self, seq: int) -> None:
        """Go to the line of that number, or to the end."""
        while self.seq < seq:
            before = self.seq
            for _ in self.lines():
                if self.seq >= seq:
                    break
            if self.seq == before:
                return

    def messages(self, most_bytes: int | None = None) -> list[str]:
        """The lines from here on as they are sent."""
        return [self._message(self.seq - 1, offset, line) for offset, line in self.lines(most_bytes)]

    def _message(self, seq: int, offset: int, line: bytes) -> str:
        """A line of our own stays as it is; one of another hand has `seq` and `attempt`, too."""
        try:
            node = orjson.loads(line)
        except ValueError:
            node = None
        if _is_event(node) and node.get("seq") == seq and isinstance(node.get("attempt"), int):
            self.attempt = node["attempt"]
            return line.decode().rstrip("\n")
        with suppress(*INVALID):
            node = node if node is not None else parse_json(line)
            if _is_event(node):
                self.attempt = int(node.get("attempt", self.attempt))
                return orjson.dumps(writable({**node, "seq": seq, "attempt": self.attempt})).decode()
        text = f"{self.path.name}: the line at byte {offset} is damaged"
        return to_line(Alert(at=0.0, step=0, text=text), seq=seq, attempt=self.attempt)


def _is_event(node: Any) -> bool:
    return isinstance(node, dict) and isinstance(node.get("kind"), str)


@dataclass
class LogTail:
    """One log that is watched."""

    position: LogPosition
    ring: Ring
    clients: int = 0

    def look(self) -> list[str]:
        """The messages since the last look; in a thread."""
        return self.position.messages(RING_BYTES)


@dataclass
class JobsTail:
    """What changes about jobs: `uuid` and the fields that are new; `gone` of a job that is there no more."""

    jobs: Jobs
    ring: Ring = field(default_factory=Ring)
    clients: int = 0
    _seen: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seen = self._nodes()

    def _nodes(self) -> dict[str, Mapping[str, Any]]:
        return {job.uuid: job.node for job in self.jobs.every()}

    def look(self) -> list[str]:
        found, nodes = self._nodes(), list[dict[str, Any]]()
        for uuid, node in found.items():
            before = self._seen.get(uuid)
            if node is not before:
                new = {name: value for name, value in node.items() if before is None or before.get(name) != value}
                nodes += [{**new, "uuid": uuid}] if new else []
        nodes += [{"uuid": uuid, "gone": True} for uuid in self._seen.keys() - found.keys()]
        self._seen = found
        return [orjson.dumps(node).decode() for node in nodes]


LiveSource = LogTail | JobsTail


class LiveStreams:
    """All that is watched, and the task that looks at it while anybody watches."""

    def __init__(self) -> None:
        self._sources = dict[Any, LiveSource]()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def _watched(self, key: Any, make: Callable[[], LiveSource]) -> AsyncIterator[LiveSource]:
        if key not in self._sources:
            made = await asyncio.to_thread(make)
            self._sources.setdefault(key, made)  # another client may have been faster
        source = self._sources[key]
        source.clients += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look_on(), name="live")
        try:
            yield source
        finally:
            source.clients -= 1
            if not source.clients and self._sources.get(key) is source:
                del self._sources[key]

    async def _look_on(self) -> None:
        turn = 0
        while self._sources:
            for key, source in list(self._sources.items()):
                if isinstance(source, JobsTail) and turn % int(JOBS_S / POLL_S):
                    continue
                try:
                    if texts := await asyncio.to_thread(source.look):
                        source.ring.add(texts)
                except (BegunAnew, OSError):
                    source.ring.end()
                    self._sources.pop(key, None)
            turn += 1
            await asyncio.sleep(POLL_S)

    async def send_log(self, path: Path, after: int, send: Send) -> None:
        """Send every line with a larger `seq` than `after`, in order, and go on as the log grows. Raises `Overtaken`
        where the client is too slow, `BegunAnew` where another log is in its place."""

        def at_the_end() -> LogTail:
            position = LogPosition(path)
            position.skip(2**63)
            return LogTail(position, Ring(position.seq))

        async with self._watched(path, at_the_end) as source:
            number = after + 1
            if number < source.ring.first:  # else nothing of the log has to be read again
                mine = LogPosition(path)
                await asyncio.to_thread(mine.skip, number)
                while mine.seq < source.ring.first:
                    texts = await asyncio.to_thread(mine.messages, PART_BYTES)
                    if not texts:
                        raise BegunAnew
                    await _send_all(texts, send)
                number = mine.seq
            await _send_on(source.ring, number, send)

    async def send_changes(self, jobs: Jobs, send: Send) -> None:
        """Send what changes about jobs from now on. Raises `Overtaken` where the client is too slow."""
        async with self._watched("jobs", lambda: JobsTail(jobs)) as source:
            await _send_on(source.ring, source.ring.next, send)


async def _send_on(ring: Ring, number: int, send: Send) -> None:
    """All messages of a ring from that number on, which may come later."""
    while True:
        while ring.next <= number:
            if not await ring.changed(PING_S):
                await _send_all(['{"kind":"Ping"}'], send)
            elif ring.ended:
                break
        texts = ring.since(number)
        await _send_all(texts, send)
        number += len(texts)


async def _send_all(texts: list[str], send: Send) -> None:
    for begin in range(0, len(texts), BURST):
        try:
            async with asyncio.timeout(STALL_S):
                for text in texts[begin : begin + BURST]:
                    await send(text)
        except TimeoutError:
            raise Overtaken from None
        await asyncio.sleep(0)  # a client that takes everything would keep the others waiting
