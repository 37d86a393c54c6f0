"""Attacks on the server: each fails, and says in a problem document why."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import sqlite3
import threading
import time
from contextlib import suppress
from itertools import product

import pytest
import uvicorn
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from launcher.core.problems import Problems
from launcher.server import listening, security
from launcher.server.access import SECRET, AccessTokens, make_tokens
from launcher.server.database import NAME, Database
from launcher.server.listening import UNREAD_BYTES, UNREAD_S, listen
from launcher.server.security import HEADERS, Guard, RequestLimits
from tests.server.conftest import PLAN, write_run

OWN, READ, LAUNCH = (letter * 43 for letter in "trl")
BODY = {"arguments": ["algorithm=sft", "model=tiny", "data=reverse"]}


def is_refused(response, status):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status
    assert all(problem["got"] and problem["fix"] for problem in response.json()["problems"]), response.text


JOBS, OWN_PAGE = "/api/jobs", "http://localhost:8000"
JSON = {"Content-Type": "application/json"}
OTHER_PAGES = (
    "http://evil.example",
    "null",
    "http://localhost:3000",
    "https://localhost:8000.evil.example",
    "http://[",
)
REQUESTS = [
    # method, address, what is sent, status of the answer
    *[("GET", JOBS, {"headers": {"Host": host}}, 421)  # DNS rebinding
      for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "", "127.0.0.1.nip.io", "[::1")],
    *[("GET", JOBS, {"headers": {"Host": host}}, 200)
      for host in ("localhost", "127.0.0.1:8000", "[::1]:8000", "192.168.1.7")],
    *[(method, JOBS, {"headers": {"Origin": origin}, **more}, 403) for origin in OTHER_PAGES
      for method, more in (("GET", {}), ("POST", {"json": BODY}))],
    ("GET", JOBS, {"headers": {"Origin": OWN_PAGE}}, 200),
    ("POST", PLAN, {"json": BODY, "headers": {"Sec-Fetch-Site": "cross-site"}}, 403),
    *[("POST", JOBS, {"content": json.dumps(BODY), "headers": {"Content-Type": kind}}, 415)  # a form of another page
      for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "")],
    ("POST", JOBS, {"content": b" " * (9 * 2**20), "headers": JSON}, 413),
    ("GET", JOBS, {"params": {"search": "x" * 10_000}}, 414),
    *[("GET", f"{JOBS}?{query}", {}, 422)  # would cost too much
      for query in ("size=0", "size=100000", "page=-1", "sort=x", "status=x", f"search={'x' * 500}",
                    "page=" + "9" * 400)],
    *[("POST", JOBS, {"content": body, "headers": JSON}, (400, 415, 422))
      for body in (b"[" * 100_000, b'{"a":' * 5_000, b"1" * 5_000, b'{"batch_size": 1e999}', b'{"batch_size": NaN}',
                   b"\xff\xfe", b"null", b"[]", b'"x"', b"", b'{"arguments": ' + b"[" * 500 + b"]" * 500 + b"}",
                   b'{"learning_rate": 1' + b"0" * 5_000 + b"}", b'{"kl_coef": 1' + b"0" * 4_000 + b"}",
                   b'{"tags": [{}]}', b'{"arguments": ["--resume=x"]}')],
]  # fmt: skip


@pytest.mark.parametrize(("method", "address", "sent", "status"), REQUESTS)
def test_a_request_is_answered_or_refused_before_anything_is_done(idle, method, address, sent, status):
    answer = idle.request(method, address, **sent)
    if status == 200:
        assert answer.status_code == 200
    elif isinstance(status, int):
        is_refused(answer, status)
    else:
        assert answer.status_code in status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_huge_body_in_parts(idle):
    is_refused(idle.post(JOBS, content=(b" " * 2**20 for _ in range(9)), headers=JSON), 413)


def is_closed(client, code=1008, **sent):
    """Whether a socket of such a request is refused."""
    with (
        pytest.raises(WebSocketDisconnect) as refused,
        client.websocket_connect("ws://localhost:8000/api/jobs/x/stream", **sent),
    ):
        pass
    return refused.value.code == code


@pytest.mark.parametrize("origin", OTHER_PAGES)
def test_a_socket_of_another_page(idle, origin):
    assert is_closed(idle, headers={"Origin": origin})


def test_a_token_is_wanted_and_has_a_scope(serve):
    client = serve(tokens={OWN: "admin", READ: "read", LAUNCH: "launch"})
    own = {"Authorization": f"Bearer {OWN}"}
    bad = ({"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {OWN}"}, {"Cookie": f"token={OWN}"})
    for headers in ({}, *bad):
        for path in ("/api/jobs", "/metrics", "/api/%6aobs"):
            is_refused(client.get(path, headers=headers), 401)
        is_refused(client.post("/api/jobs", json=BODY, headers=headers), 401)
        is_refused(client.post("/", json=BODY, headers=headers), 401)
    for query in (f"token={OWN}", f"access_token={OWN}", f"a=1&Authorization={OWN}", f"api_key={OWN}"):
        is_refused(client.get(f"/api/jobs?{query}", headers=own), 400)
    assert is_closed(client, subprotocols=["bearer.wrong"])
    read, launch = ({"Authorization": f"Bearer {token}"} for token in (READ, LAUNCH))
    assert client.get("/api/jobs", headers=read).status_code == 200
    is_refused(client.post(PLAN, json=BODY, headers=read), 403)
    for headers in (launch, own):
        assert client.post("/api/jobs", json=BODY, headers=headers).status_code == 201
    assert client.get("/docs").status_code == client.get("/").status_code == 200


def test_a_server_makes_a_token_of_each_scope_which_holds_for_the_next_one(tmp_path):
    made = make_tokens(tmp_path)
    assert list(made.values()) == ["admin", "launch", "read"] and all(len(token) == 64 for token in made)
    tokens = AccessTokens(made)
    assert [tokens.scope_of(token) for token in (*made, "", "\udc80", OWN)] == [*made.values(), None, None, None]
    assert not any(token in repr(vars(tokens)) for token in made) and tokens.are_wanted
    assert make_tokens(tmp_path) == made
    (tmp_path / SECRET).unlink()
    assert not made.keys() & make_tokens(tmp_path).keys()
    assert (tmp_path / SECRET).stat().st_mode & 0o777 == 0o600


PATHS = ["..", "../secret", "..%2f..%2fetc", "%2e%2e", "a/../../b", "a%00b", "a%0d%0aSet-Cookie:x=1"]


def test_a_path_in_the_place_of_an_id(root, client):
    root.parent.joinpath("secret").mkdir()
    write_run(root.parent / "secret" / "one")
    for name, path in product([*PATHS, "x" * 300, "\u202e"], ("", "/config", "/logs", "/checkpoints", "/metrics")):
        response = client.get(f"/api/jobs/{name}{path}")
        assert response.status_code in (404, 405, 422, 200), (name, response.text)
        assert "math" not in response.text and "Qwen" not in response.text
        assert "set-cookie" not in response.headers


def test_links_to_folders_elsewhere_are_no_jobs(root, client):
    write_run(root.parent / "elsewhere" / "math" / "one")
    root.joinpath("linked").symlink_to(root.parent / "elsewhere" / "math")
    root.joinpath("math").mkdir()
    root.joinpath("math", "one").symlink_to(root.parent / "elsewhere" / "math" / "one")
    client.app.state.services.jobs.scan()
    assert client.get("/api/jobs").json()["total"] == 0


def test_a_copied_or_forged_record_takes_no_other_jobs_place(root, client, one):
    jobs = client.app.state.services.jobs
    client.patch(f"/api/jobs/{one['uuid']}", json={"notes": "mine"})
    forged = {"two": {"uuid": one["uuid"]}, "three": {"uuid": "../../x"}, "four": {"uuid": "d", "place": "/etc"}}
    for name, node in forged.items():
        write_run(root / "math" / name)
        (root / "math" / name / "job.json").write_text(json.dumps(node))
    jobs.scan()
    found = {job["run"]: job["uuid"] for job in client.get("/api/jobs").json()["items"]}
    assert len({*found.values(), "../../x"}) == 5 and found["math/one"] == one["uuid"]
    assert all(str(job.folder.path).startswith(f"{root}/") for job in jobs.every())


HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m"


def test_texts_of_people_are_json_and_their_controls_escapes(client, one):
    """Tabs, ends of lines and letters that join stay: an escape would stand in a note once it is changed again."""
    text = "lr\t1e-5\n\u0645\u06cc\u200c\u062e \U0001f468\u200d\U0001f469"
    assert client.patch(f"/api/jobs/{one['uuid']}", json={"notes": text}).json()["notes"] == text
    changed = client.patch(f"/api/jobs/{one['uuid']}", json={"name": HOSTILE, "tags": [HOSTILE], "notes": HOSTILE})
    assert changed.headers["content-type"] == "application/json"
    assert changed.json()["name"] == "<script>alert(1)</script>\\x202e\\x1b[31m"
    is_refused(client.patch(f"/api/jobs/{one['uuid']}", json={"tags": [HOSTILE] * 101}), 422)
    for text in (b'{"name":"a\\u0000b"}', b'{"name":"\\ud800"}'):
        body = {"content": text, "headers": {"Content-Type": "application/json"}}
        is_refused(client.patch(f"/api/jobs/{one['uuid']}", **body), 422)


def test_a_secret_leaves_in_no_answer(root, client, one, monkeypatch):
    secret = "hf_" + "Ab1" * 12
    client.patch(f"/api/jobs/{one['uuid']}", json={"notes": f"used {secret}", "tags": [secret]})
    assert secret not in client.get(f"/api/jobs/{one['uuid']}").text
    assert secret not in (root / "math" / "one" / "job.json").read_text()
    plan = client.post(PLAN, json={"arguments": [*BODY["arguments"], f"model.path=https://user:{secret}@host/x"]})
    assert secret not in plan.text
    assert secret not in client.post(PLAN, json={**BODY, secret: 1}).text


def test_every_answer_has_the_headers(idle):
    asked = [idle.get(path) for path in ("/", "/api/jobs", "/nothing", "/api/jobs/x", "/docs")]
    for response in (*asked, idle.put("/api/jobs"), idle.get("/api/jobs", headers={"Host": "x"})):
        assert {name: response.headers[name] for name in HEADERS} == HEADERS
        assert "server" not in response.headers
    assert idle.put("/api/jobs").headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("/etc/passwd and a secret"), 500),  # a fault of the server's own
        (FileNotFoundError(2, "No such file", "/etc/passwd"), 404),  # a run that goes while it is read
        *((OSError(number, os.strerror(number), "/etc/passwd"), 507) for number in (errno.ENOSPC, errno.EDQUOT)),
        *((OSError(number, os.strerror(number), "/etc/passwd"), 503) for number in (errno.EROFS, errno.EACCES)),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "/etc/passwd"), 500),
        (OperationalError("SELECT passwd", {}, sqlite3.OperationalError("database or disk is full")), 507),
        (OperationalError("SELECT passwd", {}, Exception("could not extend a file: No space left on device")), 507),
        (IntegrityError("SELECT passwd", {}, sqlite3.IntegrityError("UNIQUE constraint failed")), 500),
        (DatabaseError("SELECT passwd", {}, sqlite3.DatabaseError("database disk image is malformed")), 503),
    ],
)
def test_what_fails_within_an_answer_is_told_without_what_it_says(client, one, monkeypatch, error, status):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("launcher.server.routes.records.kept_checkpoints.kept", fail)
    quiet = TestClient(client.app, base_url="http://localhost:8000", raise_server_exceptions=False)
    response = quiet.get(f"/api/jobs/{one['uuid']}/checkpoints")
    is_refused(response, status)
    assert "passwd" not in response.text
    assert response.headers["x-frame-options"] == "DENY"


# ---- over a socket


@pytest.fixture
def server(serve, monkeypatch):
    """A real server; `send(text)` gives what it answers until it closes the connection."""
    monkeypatch.setattr(listening, "HEAD_S", 0.3)
    monkeypatch.setattr(security, "RequestLimits", lambda: RequestLimits(body_s=0.3, requests=4))
    app = serve().app
    [listener] = listen("127.0.0.1", [0])
    config = uvicorn.Config(app, http=listening.BoundedProtocol, lifespan="off", log_config=None, server_header=False)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, args=([listener],), daemon=True)
    thread.start()

    def send(text, *, slowly=b""):
        with socket.create_connection(listener.getsockname(), 10) as client:
            client.sendall(text)
            if slowly:
                threading.Thread(target=_drip, args=(client, slowly), daemon=True).start()
            found = b""
            with suppress(ConnectionResetError):  # it was closed while more was sent
                while part := client.recv(65536):
                    found += part
            return found

    yield send
    running.should_exit = True
    thread.join()


def _drip(client, data):
    for byte in data:
        try:
            client.send(bytes([byte]))
        except OSError:
            return
        time.sleep(0.05)


GET, POST = b"GET /api/jobs HTTP/1.1\r\n", b"POST /api/jobs?dry_run=1 HTTP/1.1\r\nHost: localhost\r\n"
LAST = b"Connection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("text", "slowly", "answer"),
    [
        (GET + b"Host: localhost\r\n" + LAST, b"", b"200"),
        (GET + b"Host: evil.example\r\n" + LAST, b"", b"421"),
        (POST + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{", b"", b"408"),  # it never ends
        (GET + b"Host: loc", b"a" * 90, b""),  # nor do its headers
        (b"", b"", b""),
        (GET + b"Host: localhost\r\nHost: evil.example\r\n" + LAST, b"", None),
        (GET + LAST, b"", None),
        (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n" + LAST, b"", None),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n", b"", None),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", b"", None),
    ],
)
def test_what_is_sent_is_answered_refused_or_closed(server, text, slowly, answer):
    found = server(text, slowly=slowly)
    if answer is None:
        assert b" 200 " not in found.split(b"\r\n")[0]
    else:
        assert answer in found and (answer or not found)


def test_a_port_that_is_taken_is_a_problem():
    with listen("127.0.0.1", [0])[0] as taken, pytest.raises(Problems, match="--port"):
        listen("127.0.0.1", [taken.getsockname()[1]])


@pytest.mark.parametrize(("address", "where"), [("", "runs: "), ("sqlite:///{}", "--db: ")])
def test_a_database_that_cannot_be_opened_is_a_problem_of_where_it_lies(tmp_path, address, where):
    (file := tmp_path / "runs" / NAME).mkdir(parents=True)
    with pytest.raises(Problems, match=rf"{where}the database cannot be opened: unable to open database file; \w+"):
        Database(address.format(file), file.parent)


def test_a_request_and_a_socket_too_many_are_refused_until_others_end(idle):
    """With room for one of each, another comes while that is being answered; twice, as the room is free again."""
    sent = []
    of = {"headers": [(b"host", b"localhost")], "query_string": b"", "path": "/api/jobs", "method": "GET"}

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "websocket.connect"}

    async def answer(connection, receive, _):
        await guard(connection, receive, send)

    guard = Guard(
        answer, idle.app.state.services.tokens, frozenset({"localhost"}), RequestLimits(requests=1, sockets=1)
    )
    for kind in ("http", "websocket", "http", "websocket"):
        asyncio.run(guard({"type": kind, **of}, receive, send))
    refused, _, closed, *again = sent
    assert (refused["status"], dict(refused["headers"])[b"retry-after"]) == (503, b"1")
    assert (closed["type"], closed["code"]) == ("websocket.close", 1013)
    assert again == [refused, sent[1], closed]


def test_a_connection_too_many_is_closed(server, monkeypatch):
    monkeypatch.setattr(listening, "CONNECTIONS", 0)
    assert server(GET + b"Host: localhost\r\n" + LAST) == b""


def test_a_connection_sends_at_once_and_holds_what_is_not_read_for_a_bounded_time_and_size():
    """Else each answer waits for the client's word on the one before, and one that never reads keeps its connection."""
    with listen("127.0.0.1", [0])[0] as listener, socket.create_connection(listener.getsockname()):
        taken, _ = listener.accept()
        with taken:
            assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert 0 < taken.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * UNREAD_BYTES
            assert taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNREAD_S * 1e3
