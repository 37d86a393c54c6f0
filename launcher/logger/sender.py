"""`python -m launcher.logger.sender FILE URL`: sends a session's rows, while its script runs and after its end until
nothing arrives for a few seconds. What another session of the job left goes first.

A platform stores each row once: it says which number comes `next`, and what it has already is passed over. So after
any doubt the sender asks, and goes on there. W&B has a thread of its own, for it may hang.
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
from pathlib import Path
from urllib.parse import quote, urlsplit

from launcher.logger.dual_logger import finish_s
from launcher.logger.spool import SpoolReader, read_row, spool_folders
from launcher.logger.wandb_sink import WandbSink

POLL_S, HEARTBEAT_S = 0.1, 5.0  # between looks; of silence, after which a platform is shown that the script lives
ANSWER_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 2.0
WANDB_ONLY = {"wandb", "config", "summary"}
"""Kinds of rows that the platform does not get."""
GONE = b'{"kind":"finish","at":%f,"how":"failed","why":"its script was killed, or its machine went down"}'


class PlatformError(Exception):
    """Why rows did not arrive."""


class PlatformClient:
    """Asks the platform at `url`, one question at a time."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url if "://" in url else f"http://{url}")
        self._open: http.client.HTTPConnection | None = None

    def post(self, reader: SpoolReader, first: int, rows: list[bytes]) -> int:
        """Hand over rows; the number that comes next. Raises `PlatformError`."""
        body = b'{"session":"%s","first":%d,"rows":[%s]}' % (reader.session.encode(), first, b",".join(rows))
        headers = {"Content-Type": "application/json"}
        if token := os.environ.get("RLRUN_TOKEN"):
            headers["Authorization"] = f"Bearer {token}"
        try:
            if self._open is None:
                of = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
                self._open = of(self._url.hostname or "", self._url.port, timeout=ANSWER_S)
            path = f"{self._url.path.rstrip('/')}/api/jobs/{quote(reader.job)}/rows"
            self._open.request("POST", path, body, headers)
            answer = self._open.getresponse()
            text = answer.read()
            if answer.status != http.client.OK:
                raise PlatformError(f"answers {answer.status}: {_detail(text)}")
            return int(json.loads(text)["next"])
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            self.close()
            raise PlatformError(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from error

    def close(self) -> None:
        if self._open:
            self._open.close()
        self._open = None


def _detail(text: bytes) -> str:
    """Of a problem document, else the beginning of the answer."""
    node = read_row(text)
    return " ".join(str(node.get("detail") or node.get("title") or text[:200].decode("utf-8", "replace")).split())


def _for_platform(line: bytes) -> bytes:
    kind = read_row(line).get("kind")
    return b"null" if kind is None or kind in WANDB_ONLY else line.rstrip()


class SessionDelivery:
    """Brings the rows of one session to the platform."""

    def __init__(self, reader: SpoolReader, client: PlatformClient) -> None:
        self.reader, self._client = reader, client
        self._first, self._offset = 0, 0
        self.arrived = 0  # of the rows that this has sent
        self._in_doubt, self._ended, self._posted = True, False, time.monotonic()

    @property
    def waiting(self) -> int:
        """How many rows have not arrived."""
        return max(sum(1 for _ in self.reader.lines()) - self._first, 0)

    def deliver(self) -> bool:
        """Send a batch, if there is one; whether all has arrived. Raises `PlatformError`."""
        gone = self.reader.writer_gone()  # before reading
        if self._in_doubt:
            self._go_to(self._client.post(self.reader, 0, []))
        lines = self.reader.read(self._offset)
        for line in lines:
            self._ended = read_row(line).get("kind") == "finish"
        rows = list(map(_for_platform, lines))
        if gone and not lines and not self._ended:
            rows, self._ended = [GONE % self.reader.written_at], True
        if not rows and (gone or time.monotonic() - self._posted < HEARTBEAT_S):
            return gone
        self._in_doubt = True
        following = self._client.post(self.reader, self._first, rows)
        self._posted = time.monotonic()
        if following == self._first + len(rows):
            self._first, self._offset = following, self._offset + sum(map(len, lines))
            self._in_doubt = False
            self.arrived += len(lines)
        return False

    def _go_to(self, number: int) -> None:
        self._first, self._offset, self._in_doubt, self._ended = 0, 0, False, False
        for line in self.reader.lines():
            if self._first == number:
                return
            self._first, self._offset = self._first + 1, self._offset + len(line)
            self._ended = read_row(line).get("kind") == "finish"
        self._ended, self._first = self._ended or self._first < number, number


class PlatformSink:
    """Sends a session, and before it what earlier ones of its job left, again and again until it arrives."""

    def __init__(self, own: SpoolReader, url: str, say: Callable[[str], None]) -> None:
        self._own, self._say, self.name = own, say, url
        self._client = PlatformClient(url)
        self._delivery = SessionDelivery(own, self._client)
        self.reason, self.complete, self.hurry = "", False, False

    def run(self) -> None:
        for reader in (*left_behind(self._own.job, self._own.path), self._own):
            self._delivery = SessionDelivery(reader, self._client)
            pause = 0.0
            while True:
                try:
                    if self._delivery.deliver():
                        break
                    if self.reason:
                        self._say(f"{self.name} answers again")
                    self.reason, pause = "", 0.0
                except PlatformError as error:
                    if not self.reason:
                        self._say(f"{self.name}: {error}; the script goes on, and its rows wait in {reader.path}")
                    self.reason = str(error)
                    pause = min(pause * 2 or FIRST_PAUSE_S, LONGEST_PAUSE_S)
                self._wait(pause or POLL_S)
            reader.remove()
        self.complete = True

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until and not (self.hurry and now > until - seconds + FIRST_PAUSE_S):
            time.sleep(min(POLL_S, until - now))

    @property
    def arrived(self) -> int:
        """Rows of the session that is being sent."""
        return self._delivery.arrived

    @property
    def rest(self) -> str:
        """What has not arrived, and what becomes of it."""
        why = self.reason or "no answer yet"
        waits = f"{self._delivery.waiting} rows wait in {self._own.path.parent} ({why})"
        return f"{waits}: the next DualLogger of this job delivers them, or rlrun track --spool"


def left_behind(job: str, *but: Path) -> Iterator[SpoolReader]:
    """The sessions whose scripts have ended and that no process delivers, the oldest first."""
    found = (each for folder in spool_folders() for each in folder.glob(f"{job}/*.jsonl"))
    for path in sorted(found, key=lambda path: path.name):
        with suppress(OSError):
            if path not in but:
                reader = SpoolReader(path)
                if reader.writer_gone() and reader.claim():
                    yield reader
                else:  # also of a script that has just begun, whose own sender comes
                    reader.close()


def deliver_waiting(url: str) -> tuple[int, str]:
    """Send what any ended session on this machine left, each once: how many rows have arrived, and why not all."""
    client, arrived = PlatformClient(url), 0
    for reader in left_behind("*"):
        delivery = SessionDelivery(reader, client)
        try:
            while not delivery.deliver():
                pass
        except PlatformError as error:
            return arrived + delivery.arrived, f"{url}: {error}"
        arrived += delivery.arrived
        reader.remove()
    return arrived, ""


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
    _work(sinks, reader)
    for sink in sinks:
        if not sink.complete:
            say(sink.rest)
    if not url:
        reader.remove()
    os._exit(int(not all(sink.complete for sink in sinks)))  # whatever W&B still waits for


def _work(sinks: Sequence[PlatformSink | WandbSink], reader: SpoolReader) -> None:
    """Until all is done, or after the end of the script nothing has arrived for some seconds."""
    threads = [threading.Thread(target=sink.run, daemon=True) for sink in sinks]
    for thread in threads:
        thread.start()
    deadline, before = math.inf, -1
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        arrived = sum(sink.arrived for sink in sinks)
        if (deadline == math.inf or arrived != before) and reader.writer_gone():
            deadline, before = time.monotonic() + finish_s(), arrived
            for sink in sinks:
                sink.hurry = True
        time.sleep(POLL_S / 2)


if __name__ == "__main__":
    main()
