"""Live streams: the lines of event logs as they are written.

Each client reads its log from where it is, in parts, until it has all. What is written from then on is read and made
into messages once for all clients, by one task. A client that takes nothing for STALL_S loses its connection and can
reconnect with the last `seq` that it has, so each client gets every message exactly once.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.core.bounded_parse import parse_json
from launcher.core.events import INVALID, LARGEST, Alert, to_line, writable
from launcher.core.files import open_file, read_lines

POLL_S = 0.05  # between two reads of the watched logs
STALL_S = 15.0  # in which a client must take BURST messages
PING_S = 20.0  # without a message, after which a Ping is sent
PART_BYTES = 2**18  # read of a log at a time
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

    def messages(self, after: int = -1, most_bytes: float = math.inf) -> list[str]:
        """Those of the next lines whose `seq` is larger than `after` as JSON messages; as `lines`."""
        lines = ((self.seq - 1, offset, line) for offset, line in self.lines(most_bytes))
        return [self._message(*each) for each in lines if each[0] > after]

    def lines(self, most_bytes: float = math.inf) -> Iterator[tuple[int, bytes]]:
        """Complete lines from here on with their byte offsets, about `most_bytes` of them; the position moves on with
        each. Raises `BegunAnew`."""
        try:
            with open_file(self.path) as file:
                stat = os.fstat(file.fileno())
                if stat.st_size < self.offset or self.inode not in (0, stat.st_ino):
                    raise BegunAnew
                self.inode = stat.st_ino
                end = self.offset + most_bytes
                file.seek(self.offset)
                for line, size, ended in read_lines(file):
                    if not ended or self.offset >= end:
                        return
                    offset, self.seq, self.offset = self.offset, self.seq + 1, self.offset + size
                    yield offset, line
        except FileNotFoundError:  # not written yet
            if self.offset:
                raise BegunAnew from None

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


@dataclass(eq=False)
class WatchedLog:
    """One log as it grows, for all clients that have what was written before."""

    end: LogPosition
    """Up to where it was read."""
    first: int
    """The `seq` of the first of `messages`."""
    messages: Sequence[str] = ()
    """What the latest read of it brought."""
    clients: int = 0
    is_over: bool = False
    """Whether the log was replaced."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the next change of all these; then there is a new one."""

    async def read(self) -> None:
        """Read what was written since the last call."""
        end = replace(self.end)  # clients look at `end` while it is read
        try:
            if messages := await asyncio.to_thread(end.messages, -1, PART_BYTES):
                self.first, self.messages, self.end = self.end.seq, messages, end
        except (BegunAnew, OSError):
            self.is_over = True
        if self.is_over or self.end is end:
            self.changed.set()
            self.changed = asyncio.Event()


class LiveStreams:
    """All watched logs, and the task that polls them while there are clients."""

    def __init__(self) -> None:
        self._logs = dict[Path, WatchedLog]()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def _watched(self, path: Path) -> AsyncIterator[WatchedLog]:
        if path not in self._logs:
            end = LogPosition(path)
            await asyncio.to_thread(end.messages, LARGEST)
            self._logs.setdefault(path, WatchedLog(end, end.seq))  # another client may have been faster
        log = self._logs[path]
        log.clients += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll_logs(), name="live")
        try:
            yield log
        finally:
            log.clients -= 1
            if not log.clients and self._logs.get(path) is log:
                del self._logs[path]

    async def _poll_logs(self) -> None:
        while self._logs:
            for path, log in list(self._logs.items()):
                await log.read()
                if log.is_over and self._logs.get(path) is log:
                    del self._logs[path]
            await asyncio.sleep(POLL_S)

    async def send_log(self, path: Path, after: int, send: Send) -> None:
        """Send every line whose `seq` is larger than `after`, in order, and go on as the log grows. Raises `Overtaken`
        where the client is too slow, `BegunAnew` where the log was replaced."""
        async with self._watched(path) as log:
            position = LogPosition(path)
            while not log.is_over:
                if log.first <= position.seq < log.end.seq:  # it misses only what was read last
                    messages = log.messages[max(position.seq, after + 1) - log.first :]
                    position = replace(log.end)
                elif position.seq < log.end.seq:
                    messages = await asyncio.to_thread(position.messages, after, PART_BYTES)
                else:
                    messages = () if await _happens(log.changed) else ['{"kind":"Ping"}']
                await _send_all(messages, send)
            raise BegunAnew


async def _happens(event: asyncio.Event) -> bool:
    """Wait for an event; False where it has not come within PING_S."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), PING_S)
    return event.is_set()


async def _send_all(messages: Sequence[str], send: Send) -> None:
    for start in range(0, len(messages), BURST):
        try:
            async with asyncio.timeout(STALL_S):
                for text in messages[start : start + BURST]:
                    await send(text)
        except TimeoutError:
            raise Overtaken from None
        await asyncio.sleep(0)  # let other clients have their turn
