"""Checks the host name and proxies by which processes of this machine connect, and the hubs. Nothing is downloaded."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPException
from threading import Thread
from typing import TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, proxy_bypass, urlopen

from launcher.core.check_result import CheckResult
from launcher.core.machine import LOOPBACK
from launcher.core.problems import error_message
from launcher.hubs import huggingface

PATIENCE_S = 3.0  # for a name server or a hub
T = TypeVar("T")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")


def check() -> list[CheckResult]:
    modelscope = os.environ.get("MODELSCOPE_ENDPOINT") or "https://www.modelscope.cn"
    with ThreadPoolExecutor(2) as pool:
        hubs = [
            pool.submit(check_hub, "huggingface", "HF_ENDPOINT", huggingface.endpoint()),
            pool.submit(check_hub, "modelscope", "MODELSCOPE_ENDPOINT", modelscope),
        ]
        local_results = [check_hostname(socket.gethostname()), *check_proxies(os.environ)]
        return [*local_results, *(answer.result() for answer in hubs)]


def check_hostname(name: str) -> CheckResult:
    """gloo and NCCL use the address of the machine's own name by default."""
    try:
        info = call_with_timeout(PATIENCE_S, lambda: socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        fix = f"add the line `{LOOPBACK} {name}` to /etc/hosts, or set GLOO_SOCKET_IFNAME=lo"
        return CheckResult("WARN", "hostname", f"{name} cannot be resolved: {error_message(error)}", fix)
    return CheckResult("OK", "hostname", f"{name} is {', '.join(sorted({str(address[0]) for *_, address in info}))}")


def check_proxies(environment: Mapping[str, str]) -> list[CheckResult]:
    """Rewards by HTTP and Ray talk to this machine itself; a proxy cannot reach it."""
    set_proxies = [name for name in PROXIES if environment.get(name) or environment.get(name.upper())]
    excluded = {"no": environment.get("no_proxy") or environment.get("NO_PROXY") or ""}
    if not set_proxies or all(proxy_bypass(host, excluded) for host in ("localhost", LOOPBACK)):
        return []
    message = f"{', '.join(set_proxies)} also apply to this machine itself, which no proxy reaches"
    return [CheckResult("WARN", "proxy", message, f"set no_proxy=localhost,{LOOPBACK}")]


def check_hub(name: str, variable: str, endpoint: str) -> CheckResult:
    """Whether a hub answers at all. At worst a warning, as a run may have all it needs on this machine. The address
    may hold a password, so only its host is shown."""
    if huggingface.offline():
        return CheckResult("OK", name, "HF_HUB_OFFLINE is set: neither rlrun doctor nor a run connects")
    try:
        url = urlsplit(endpoint)
        host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
        port = f":{url.port}" if url.port else ""
        if url.scheme not in ("http", "https") or not host:
            raise ValueError("no host, or no scheme")
        call_with_timeout(PATIENCE_S, lambda: _send_head(f"{url.scheme}://{host}{port}"))
    except ValueError:  # also a name that the internet cannot have
        return CheckResult("WARN", name, f"{variable} is not a server address", f"set {variable}=https://HOST")
    except OSError as error:
        why = error.reason if isinstance(error, URLError) else error
        message = f"{host} cannot be reached: {error_message(why) if isinstance(why, OSError) else why}"
        fix = f"use a network, or set {variable} to a mirror; what is on this machine runs without"
        return CheckResult("WARN", name, message, fix)
    return CheckResult("OK", name, f"{host} answers")


def _send_head(address: str) -> None:
    try:
        urlopen(Request(address, method="HEAD"), timeout=PATIENCE_S).close()
    except HTTPError as answered:
        answered.close()
    except HTTPException as error:
        raise ConnectionError("what answers there does not speak HTTP") from error


def call_with_timeout(seconds: float, call: Callable[[], T]) -> T:
    """What `call` returns. Raises the `OSError` or `ValueError` that it raises, and `TimeoutError` where it takes
    longer; then it continues in a thread that does not keep this process alive."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except (OSError, ValueError) as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError as error:
        if future.done():
            raise  # a network's own timeout
        raise TimeoutError(f"no answer in {seconds:g} s") from error
