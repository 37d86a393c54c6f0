"""`python -m launcher.logger.sender FILE URL`: sends a session's rows while its script runs, and after its end until
nothing arrives for a few seconds. Rows that earlier sessions of the job left are sent first.

The platform stores each row once: it answers with the number of the `next` row, and ignores rows that it has. So after
a failed request the sender sends the same rows again. W&B has its own thread, as it may hang.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from urllib.parse import quote, urlsplit

from launcher.logger.dual_logger import finish_s
from launcher.logger.spool import SpoolReader, read_row, spool_folders
from launcher.logger.wandb_sink import WandbSink

POLL_S, HEARTBEAT_S = 0.1, 5.0  # between reads of the spool; between empty posts that show that the script lives
ANSWER_S = 10.0
PAUSE_S = 0.5  # after a failed request
WANDB_ONLY = {"wandb", "config", "summary"}
"""Kinds of rows that are not sent to the platform."""
GONE = b'{"kind":"finish","at":%f,"how":"failed","why":"its script was killed, or its machine went down"}'


class PlatformError(Exception):
    """A request failed; its text is the reason."""


class PlatformClient:
    """A connection to the platform at `url`, for one request at a time."""

    def __init__(self, url: str) -> None:
        self._address = url if "://" in url else f"http://{url}"
        self._connection: http.client.HTTPConnection | None = None

    def post(self, reader: SpoolReader, first: int, rows: list[bytes]) -> int:
        """Send `rows`, numbered from `first`; returns the number of the next row. Raises `PlatformError`."""
        body = b'{"session":"%s","first":%d,"rows":[%s]}' % (reader.session.encode(), first, b",".join(rows))
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get("RLRUN_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        try:
            url = urlsplit(self._address)
            if self._connection is None:
                connect = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
                self._connection = connect(url.hostname or "", url.port, timeout=ANSWER_S)
            path = f"{url.path.rstrip('/')}/api/jobs/{quote(reader.job)}/rows"
            self._connection.request("POST", path, body, headers)
            response = self._connection.getresponse()
            text = response.read()
            if response.status != http.client.OK:
                raise PlatformError(f"answers {response.status}: {_problem_detail(text)}")
            return max(int(json.loads(text)["next"]), 0)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            self.close()
            raise PlatformError(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from error

    def close(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None


def _problem_detail(text: bytes) -> str:
    """The detail of a problem document, else the beginning of the response."""
    node = read_row(text)
    return " ".join(str(node.get("detail") or node.get("title") or text[:200].decode("utf-8", "replace")).split())


def _platform_row(line: bytes) -> bytes:
    kind = read_row(line).get("kind")
    return b"null" if kind is None or kind in WANDB_ONLY else line.rstrip()


class SessionDelivery:
    """Sends the rows of one session to the platform. After a failed request the same rows are sent again."""

    def __init__(self, reader: SpoolReader, client: PlatformClient) -> None:
        self.reader, self._client = reader, client
        self._first: int | None = None
        """Number of the row at `_offset`, which is sent next; None until the platform has said which it has."""
        self._offset, self._ended, self._posted = 0, False, time.monotonic()
        self.arrived = 0  # rows sent by this object

    @property
    def waiting(self) -> int:
        """Number of rows that have not arrived."""
        return max(sum(1 for _ in self.reader.lines()) - (self._first or 0), 0)

    def deliver(self) -> bool:
        """Send the next batch, if any; True once the session has ended and all has arrived. Raises `PlatformError`."""
        writer_gone = self.reader.writer_gone()  # checked before reading, so no row is missed
        first = self._seek(self._client.post(self.reader, 0, [])) if self._first is None else self._first
        lines = self.reader.read(self._offset)
        rows = list(map(_platform_row, lines))
        if writer_gone and not lines and not self._ended:
            rows = [GONE % self.reader.written_at]
        if not rows and (writer_gone or time.monotonic() - self._posted < HEARTBEAT_S):
            return writer_gone
        following = self._client.post(self.reader, first, rows)
        self._posted = time.monotonic()
        if following != first + len(rows):
            self._seek(following)
            return False
        self._first, self._offset = following, self._offset + sum(map(len, lines))
        if last := (lines or rows)[-1:]:
            self._ended = read_row(last[0]).get("kind") == "finish"
        self.arrived += len(lines)
        return False

    def _seek(self, number: int) -> int:
        """Go on at the row of this `number`, which is returned."""
        self._first, self._offset, last, lines = number, 0, b"", 0
        for line in islice(self.reader.lines(), number):
            self._offset, last, lines = self._offset + len(line), line, lines + 1
        self._ended = lines < number or read_row(last).get("kind") == "finish"
        return number


class PlatformSink:
    """Sends a session, and before it what earlier sessions of its job left; retries until it arrives."""

    def __init__(self, own: SpoolReader, url: str, say: Callable[[str], None]) -> None:
        self._own, self._say, self.name = own, say, url
        self._client = PlatformClient(url)
        self._delivery = SessionDelivery(own, self._client)
        self.reason, self.complete = "", False

    def run(self) -> None:
        for reader in (*left_behind(self._own), self._own):
            self._delivery = SessionDelivery(reader, self._client)
            while True:
                try:
                    if self._delivery.deliver():
                        break
                    if self.reason:
                        self._say(f"{self.name} answers again")
                    self.reason = ""
                except PlatformError as error:
                    if not self.reason:
                        self._say(f"{self.name}: {error}; the script goes on, and its rows wait in {reader.path}")
                    self.reason = str(error)
                time.sleep(PAUSE_S if self.reason else POLL_S)
            reader.remove()
        self.complete = True

    @property
    def arrived(self) -> int:
        """Number of rows sent of the current session."""
        return self._delivery.arrived

    @property
    def rest(self) -> str:
        """A message: how many rows have not arrived, why, and how they will be sent."""
        why = self.reason or "no answer yet"
        waits = f"{self._delivery.waiting} rows wait in {self._own.path.parent} ({why})"
        return f"{waits}: the next DualLogger of this job delivers them"


def left_behind(own: SpoolReader) -> Iterator[SpoolReader]:
    """The earlier sessions of the same job that no process delivers; oldest first, claimed."""
    paths = (path for folder in spool_folders() for path in folder.glob(f"{own.job}/*.jsonl"))
    for path in sorted(paths, key=lambda path: path.name):
        with suppress(OSError):
            if path != own.path:
                reader = SpoolReader(path)
                if reader.writer_gone() and reader.claim():
                    yield reader
                else:  # a running script, or one with a sender
                    reader.close()


def main() -> None:
    path, url = Path(sys.argv[1]), sys.argv[2]
    reader = SpoolReader(path)
    if not reader.claim():
        return

    def say(text: str) -> None:
        with suppress(OSError):
            print(f"rlrun: {reader.job}: {text}", file=sys.stderr, flush=True)

    sinks: list[PlatformSink | WandbSink] = [PlatformSink(reader, url, say)] if url else []
    if init := read_row(next(reader.lines(), b"")).get("init"):
        sinks.append(WandbSink(reader, init, say))
    _run_sinks(sinks, reader)
    for sink in sinks:
        if not sink.complete:
            say(sink.rest)
    if not url:
        reader.remove()
    os._exit(int(not all(sink.complete for sink in sinks)))  # without waiting for threads of W&B


def _run_sinks(sinks: Sequence[PlatformSink | WandbSink], reader: SpoolReader) -> None:
    """Run all sinks until they are done or, once the script has ended, nothing arrives for `finish_s()`."""
    threads = [threading.Thread(target=sink.run, daemon=True) for sink in sinks]
    for thread in threads:
        thread.start()
    deadline, last_arrived = math.inf, -1
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        arrived = sum(sink.arrived for sink in sinks)
        if (deadline == math.inf or arrived != last_arrived) and reader.writer_gone():
            deadline, last_arrived = time.monotonic() + finish_s(), arrived
        time.sleep(POLL_S / 2)


if __name__ == "__main__":
    main()
