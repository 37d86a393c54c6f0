"""Each line of a log reaches each client once and in order, whatever breaks; a client that does not read is let go."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import WebSocketDenialResponse

from launcher.core.events import Alert, Restarted, Step, to_line
from launcher.server import live
from launcher.server.live import BegunAnew, LiveStreams, Overtaken
from tests.server.conftest import only_job, write_run

LINES = 400
HERE = "ws://localhost:8000"


def line(seq: int) -> str:
    back = Restarted(at=1.0, step=1, attempt=2, cause="killed", why="x")
    event = back if seq % 90 == 89 else Step(at=2.0, step=seq, metrics={"a": seq})
    return to_line(event, seq=seq, attempt=1 + seq // 90) + "\n"


class Client:
    """Takes messages, and breaks off after some of them."""

    def __init__(self, breaks: random.Random) -> None:
        self.got, self._breaks, self._left = list[dict[str, Any]](), breaks, 0

    async def send(self, text: str) -> None:
        self.got.append(json.loads(text))
        self._left -= 1
        if not self._left or len(self.got) == LINES:
            raise ConnectionError
        await asyncio.sleep(0)

    async def follow(self, hub: LiveStreams, path: Path) -> None:
        while len(self.got) < LINES:
            self._left = self._breaks.randrange(1, LINES)
            try:
                await hub.send_log(path, self.got[-1]["seq"] if self.got else -1, self.send)
            except (ConnectionError, Overtaken):  # a busy machine may look like a slow client
                continue


@pytest.mark.parametrize("seed", range(3))
def test_each_line_once_and_in_order_across_broken_connections(seed, tmp_path, monkeypatch):
    """Also of a log that is not there yet, that goes back, that grows by halves of lines, and by more than is read at a
    time. A client that takes nothing is let go, and costs the others nothing."""
    path, chance = tmp_path / "events.jsonl", random.Random(seed)
    monkeypatch.setattr(live, "STALL_S", 0.2)
    monkeypatch.setattr(live, "PART_BYTES", 500)

    async def write() -> None:
        waiting = "".join(map(line, range(LINES)))
        while waiting:
            many = chance.randrange(1, 900)
            with path.open("a") as log:
                log.write(waiting[:many])
            waiting = waiting[many:]
            await asyncio.sleep(0)

    async def frozen(hub: LiveStreams) -> None:
        with pytest.raises(Overtaken):
            await hub.send_log(path, -1, lambda text: asyncio.Event().wait())

    async def run() -> list[Client]:
        hub, clients = LiveStreams(), [Client(random.Random(number)) for number in range(20)]
        await asyncio.gather(frozen(hub), write(), *(client.follow(hub, path) for client in clients))
        return clients

    for client in asyncio.run(run()):
        assert [each["seq"] for each in client.got] == list(range(LINES))
        assert client.got == [json.loads(line(seq)) for seq in range(LINES)]


def test_lines_of_another_hand_and_damaged_ones_have_their_place(tmp_path):
    path = tmp_path / "events.jsonl"
    step, phase = '{"kind": "Step", "step": 1, "metrics": {"a": NaN}}', '{"seq":9,"kind":"Phase","name":"rollout"}'
    path.write_text(f"{step}\n{{damaged\n{phase}\n{line(3)}half")
    got = [json.loads(text) for text in live.LogPosition(path).messages()]
    assert [each["seq"] for each in got] == [0, 1, 2, 3] and got[0]["metrics"] == {"a": "NaN"}
    assert got[1]["kind"] == "Alert" and "damaged" in got[1]["text"] and got[2]["name"] == "rollout"


def test_a_log_that_is_begun_anew_ends_the_stream(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text(line(0) + line(1))

    async def send(text: str) -> None:
        if json.loads(text)["seq"] == 1:
            path.unlink()
            path.write_text(line(0))

    with pytest.raises(BegunAnew):
        asyncio.run(LiveStreams().send_log(path, -1, send))


def test_a_socket_has_the_lines_after_a_number_and_then_what_comes(root, client):
    folder = write_run(root / "math" / "one", how="stopped")
    lines = (folder / "events.jsonl").read_text().splitlines()
    job = only_job(client)
    with client.websocket_connect(f"{HERE}/api/jobs/{job['uuid']}/stream?after=2", subprotocols=["live"]) as socket:
        assert socket.accepted_subprotocol == "live"
        assert [socket.receive_text() for _ in lines[3:]] == lines[3:]
        more = to_line(Alert(step=3, text="<b>late</b>"), seq=len(lines), attempt=1)
        with (folder / "events.jsonl").open("a") as log:
            log.write(more + "\n")
        assert socket.receive_text() == more
    for path, status in (("/api/jobs/nonsense/stream", 404), (f"/api/jobs/{job['uuid']}/stream?after=NaN", 422)):
        with pytest.raises(WebSocketDenialResponse) as refused:
            client.websocket_connect(HERE + path).__enter__()
        assert refused.value.status_code == status and refused.value.json()["problems"]
