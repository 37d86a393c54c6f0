"""Whether processes of this machine can connect to each other, and whether the hubs answer. Nothing is downloaded."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPException
from threading import Thread
from typing import TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, getproxies, proxy_bypass, urlopen

import psutil

from launcher.core.check_result import CheckResult
from launcher.core.machine import LOOPBACK
from launcher.core.problems import error_message
from launcher.hubs import huggingface

PATIENCE_S = 3.0
T = TypeVar("T")
RAY_PORTS = {6379: "its head", 8265: "its dashboard", 10001: "its clients"}


def check() -> list[CheckResult]:
    with ThreadPoolExecutor(2) as pool:
        hubs = pool.map(lambda named: hub(*named), _hubs().items())
        found = [loopback(), hostname(socket.gethostname()), proxies(os.environ), ports()]
        return [*(result for result in found if result), *hubs]


def loopback() -> CheckResult:
    """The processes of one run connect over a free port of the loopback interface."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            server.settimeout(PATIENCE_S)
            with socket.create_connection(server.getsockname(), PATIENCE_S) as one, server.accept()[0] as other:
                other.settimeout(PATIENCE_S)
                one.sendall(b"x")
                if other.recv(1) != b"x":
                    raise ConnectionError("what was sent did not arrive")
    except OSError as error:
        message = f"two sockets of this machine cannot connect: {error_message(error)}"
        return CheckResult("FAIL", "loopback", message, "run ip link set lo up, or open the firewall for it")
    return CheckResult("OK", "loopback", f"two sockets connect at {LOOPBACK}")


def hostname(name: str) -> CheckResult:
    """gloo and NCCL use the address of the machine's own name by default."""
    try:
        found = call_with_timeout(PATIENCE_S, lambda: socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        fix = f"add the line `{LOOPBACK} {name}` to /etc/hosts, or set GLOO_SOCKET_IFNAME=lo"
        return CheckResult("WARN", "hostname", f"{name} cannot be resolved: {error_message(error)}", fix)
    addresses = sorted({str(address[0]) for *_, address in found})
    return CheckResult("OK", "hostname", f"{name} is {', '.join(addresses)}")


def proxies(environment: Mapping[str, str]) -> CheckResult | None:
    """Rewards by HTTP and Ray talk to this machine itself; a proxy cannot reach it."""
    named = [name for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
             if environment.get(name) or environment.get(name.upper())]  # fmt: skip
    if not named:
        return None
    known = {"no": environment.get("no_proxy") or environment.get("NO_PROXY") or ""}
    caught = [host for host in ("localhost", LOOPBACK) if not proxy_bypass(host, known)]
    if caught:
        message = f"{', '.join(named)} also apply to {' and '.join(caught)}, which no proxy reaches"
        return CheckResult("WARN", "proxy", message, f"set no_proxy=localhost,{LOOPBACK}")
    return CheckResult("OK", "proxy", f"{', '.join(named)}; not for this machine")


def ports(wanted: Mapping[int, str] = RAY_PORTS) -> CheckResult:
    """Ray's default ports: a Ray head cannot start where another program holds one."""
    taken = [f"{port} ({use}) by {holder(port)}" for port, use in wanted.items() if not free(port)]
    if taken:
        message = f"taken: {', '.join(taken)}"
        return CheckResult("WARN", "ports", message, "if that is not Ray, give ray start other ports")
    return CheckResult("OK", "ports", f"Ray's {', '.join(map(str, wanted))} are free")


def free(port: int) -> bool:
    try:
        socket.create_server(("", port)).close()  # with SO_REUSEADDR: one that was just closed is free
    except OSError:
        return False
    return True


def holder(port: int) -> str:
    """Which process listens there, where the system tells us."""
    try:
        every = psutil.net_connections("tcp")
        pid = next((one.pid for one in every if one.laddr and one.laddr.port == port and one.pid), None)
        return "a process of another user" if pid is None else f"{psutil.Process(pid).name()} (pid {pid})"
    except psutil.Error:
        return "an unknown process"


def _hubs() -> dict[str, str]:
    own = os.environ.get("MODELSCOPE_ENDPOINT") or "https://www.modelscope.cn"
    return {"huggingface": huggingface.endpoint(), "modelscope": own}


def hub(name: str, endpoint: str) -> CheckResult:
    """Any answer counts. Offline is fine where what a run needs is here, so it is never more than a warning. The
    address may hold a password, and is told by its host only."""
    if huggingface.offline():
        return CheckResult("OK", name, "HF_HUB_OFFLINE is set: neither rlrun doctor nor a run connects")
    variable = "HF_ENDPOINT" if name == "huggingface" else "MODELSCOPE_ENDPOINT"
    try:
        whole = urlsplit(endpoint)
        host, port = whole.hostname, whole.port
        if whole.scheme not in ("http", "https") or not host:
            raise ValueError("no host, or no scheme")
    except ValueError:
        return CheckResult("WARN", name, f"{variable} is not a server address", f"set {variable}=https://HOST")
    place = f"[{host}]" if ":" in host else host
    try:
        call_with_timeout(PATIENCE_S, lambda: _knock(f"{whole.scheme}://{place}" + (f":{port}" if port else "")))
    except UnicodeError:  # no name that the internet has
        return CheckResult("WARN", name, f"{variable} is not a server address", f"set {variable}=https://HOST")
    except OSError as error:
        why = error.reason if isinstance(error, URLError) else error
        if isinstance(why, ssl.SSLCertVerificationError):
            message = f"{host} shows a certificate that this machine does not trust ({why.verify_message})"
            return CheckResult("WARN", name, message, "set SSL_CERT_FILE to your network's own certificate authority")
        reason = error_message(why) if isinstance(why, OSError) else str(why)
        way = ", by a proxy," if whole.scheme in getproxies() and not proxy_bypass(host) else ""
        message = f"{host}{way} cannot be reached: {reason}"
        fix = f"use a network, or set {variable} to a mirror; what is on this machine runs without"
        return CheckResult("WARN", name, message, fix)
    return CheckResult("OK", name, f"{host} answers")


def _knock(address: str) -> None:
    try:
        urlopen(Request(address, method="HEAD"), timeout=PATIENCE_S).close()
    except HTTPError as answered:
        answered.close()
    except HTTPException as error:
        raise ConnectionError("what answers there does not speak HTTP") from error


def call_with_timeout(seconds: float, call: Callable[[], T]) -> T:
    """What `call` returns. Raises the `OSError` or `ValueError` that it raised, and `TimeoutError` where it takes
    longer; then it goes on in a thread that does not keep this process alive."""
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
