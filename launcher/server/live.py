"""Live streams: the lines of event logs as they are written.

Each watched log is read by one reader, however many clients watch it, and each of its lines becomes a message once. The
latest messages are kept, bounded in size, and each client sends them at its own pace: a client that these have
overtaken, or that takes nothing for STALL_S, loses its connection and can reconnect with the last `seq` that it has.
Messages older than those are read from the log, so each client gets every message exactly once.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.core.bounded_parse import parse_json
from launcher.core.events import INVALID, Alert, to_line, writable
from launcher.core.files import open_file, read_lines

POLL_S = 0.05  # between two reads of the watched logs
STALL_S = 15.0  # in which a client must take BURST messages
PING_S = 20.0  # without a message, after which a Ping is sent
KEPT_LINES, KEPT_BYTES = 2_000, 2**22  # messages kept for slow clients
PART_BYTES = 2**18  # read of a log at a time while a client catches up
BURST = 32  # messages to one client before others have their turn
TRY_AGAIN, BEGUN_ANEW = 1013, 1012  # WebSocket close codes

Send = Callable[[str], Awaitable[None]]


class Overtaken(Exception):
    """The client is too slow; it may reconnect."""


class BegunAnew(Exception):
    """The log that was watched has been replaced or truncated."""


@dataclass
class LogPosition:
    """A position in an event log, which moves on as lines are read."""

    path: Path
    seq: int = 0
    offset: int = 0
    attempt: int = 1
    inode: int = 0

    def lines(self, most_bytes: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Complete lines from here on with their byte offsets, about `most_bytes` of them. Raises `BegunAnew`."""
        try:
            with open_file(self.path) as file:
                stat = os.fstat(file.fileno())
                if stat.st_size < self.offset or self.inode not in (0, stat.st_ino):
                    raise BegunAnew
                self.inode = stat.st_ino
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
        """Move to line `seq`, or to the end. Raises `BegunAnew`."""
        while self.seq < seq:
            start = self.seq
            for _ in self.lines():
                if self.seq >= seq:
                    break
            if self.seq == start:
                return

    def messages(self, most_bytes: int | None = None) -> list[str]:
        """The lines from here on as JSON messages; about `most_bytes` of them. Raises `BegunAnew`."""
        return [self._message(self.seq - 1, offset, line) for offset, line in self.lines(most_bytes)]

    def _message(self, seq: int, offset: int, line: bytes) -> str:
        """A line of rlrun is sent unchanged; `seq` and `attempt` are added to one that another program wrote."""
        try:
            node = parse_json(line)
            self.attempt = int(node.get("attempt", self.attempt))
            if not isinstance(node["kind"], str):
                raise ValueError("it is no event")
            if node.get("seq") == seq and "attempt" in node:
                return line.decode().rstrip("\n")
            return json.dumps(writable({**node, "seq": seq, "attempt": self.attempt}))
        except INVALID:
            text = f"{self.path.name}: the line at byte {offset} is damaged"
            return to_line(Alert(at=0.0, step=0, text=text), seq=seq, attempt=self.attempt)


class LogTail:
    """The latest lines of one log as messages; the number of each is its `seq`."""

    def __init__(self, path: Path) -> None:
        """Begins at the end of the log, which is read: call it in a thread. Raises `BegunAnew`."""
        self.position = LogPosition(path)
        self.position.skip(2**63)
        self.first = self.next = self.position.seq
        self.clients = 0
        self._messages, self._bytes = list[str](), 0
        self._changed, self.ended = asyncio.Event(), False

    def add(self, texts: list[str]) -> None:
        self._messages += texts
        self.next += len(texts)
        self._bytes += sum(map(len, texts))
        if len(self._messages) > 2 * KEPT_LINES or self._bytes > 2 * KEPT_BYTES:
            while len(self._messages) > KEPT_LINES or self._bytes > KEPT_BYTES:
                dropped = max(len(self._messages) // 4, 1)
                self._bytes -= sum(map(len, self._messages[:dropped]))
                del self._messages[:dropped]
                self.first += dropped
        self._notify()

    def end(self) -> None:
        """The log was replaced: readers get `BegunAnew`."""
        self.ended = True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def since(self, number: int) -> list[str]:
        """At most BURST messages from `number` on; none where none has come for PING_S. Raises `Overtaken` where it is
        gone, `BegunAnew` after `end`."""
        if self.next <= number and not self.ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(PING_S):
                    await self._changed.wait()
        if self.ended:
            raise BegunAnew
        if number < self.first:
            raise Overtaken
        return self._messages[number - self.first : number - self.first + BURST]


class LiveStreams:
    """All watched logs, and the task that polls them while there are clients."""

    def __init__(self) -> None:
        self._tails = dict[Path, LogTail]()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def _watched(self, path: Path) -> AsyncIterator[LogTail]:
        if path not in self._tails:
            new_tail = await asyncio.to_thread(LogTail, path)
            self._tails.setdefault(path, new_tail)  # another client may have been faster
        tail = self._tails[path]
        tail.clients += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll_logs(), name="live")
        try:
            yield tail
        finally:
            tail.clients -= 1
            if not tail.clients and self._tails.get(path) is tail:
                del self._tails[path]

    async def _poll_logs(self) -> None:
        while self._tails:
            for path, tail in list(self._tails.items()):
                try:
                    if texts := await asyncio.to_thread(tail.position.messages, KEPT_BYTES):
                        tail.add(texts)
                except (BegunAnew, OSError):
                    tail.end()
                    self._tails.pop(path, None)
            await asyncio.sleep(POLL_S)

    async def send_log(self, path: Path, after: int, send: Send) -> None:
        """Send every line whose `seq` is larger than `after`, in order, and go on as the log grows. Raises `Overtaken`
        where the client is too slow, `BegunAnew` where the log was replaced."""
        async with self._watched(path) as tail:
            number = after + 1
            if number < tail.first:  # it needs lines that are kept no longer
                position = LogPosition(path)
                await asyncio.to_thread(position.skip, number)
                while position.seq < tail.first:
                    texts = await asyncio.to_thread(position.messages, PART_BYTES)
                    if not texts:
                        raise BegunAnew
                    await _send_all(texts, send)
                number = position.seq
            while True:
                texts = await tail.since(number)
                await _send_all(texts or ['{"kind":"Ping"}'], send)
                number += len(texts)


async def _send_all(texts: list[str], send: Send) -> None:
    for start in range(0, len(texts), BURST):
        try:
            async with asyncio.timeout(STALL_S):
                for text in texts[start : start + BURST]:
                    await send(text)
        except TimeoutError:
            raise Overtaken from None
        await asyncio.sleep(0)  # let other clients have their turn
