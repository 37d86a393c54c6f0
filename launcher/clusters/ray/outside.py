"""A command of ours on a cluster's head, typed on a machine that is no node of it: a job of the head's job server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from functools import partial
from importlib.util import find_spec

from ray.job_submission import JobSubmissionClient

from launcher.clusters.nodes.reach import COPY
from launcher.clusters.ray import told
from launcher.clusters.ray.job_server import NO_RLRUN, SUBMIT_S, answer, client, ended, entrypoint
from launcher.foreign import Fault, attempt

ELSE = "a machine that is one of its nodes would do, or rlrun[jobs] here and on its head"
REFUSED, TOKEN = "it lets nobody in without its token", f"RAY_AUTH_TOKEN_PATH, of a file with {COPY}, would do"


def said(address: str, words: Sequence[str], columns: str) -> Generator[told.Said]:
    """What it says there, as it says it; it ends with whoever listens."""
    if not find_spec("aiohttp"):
        yield _not(address, "this machine is no node of it, and has no client for its job server")
        return
    server = client(address)
    if isinstance(server, Fault):
        refused = server.kind == "AuthenticationError"
        yield _not(address, *((REFUSED, TOKEN) if refused else (server.reason, ELSE)))
        return
    job = f"rlrun-{words[0]}-{secrets.token_hex(4)}"
    command = f"export COLUMNS={columns or 80}\n{entrypoint('launcher.clusters.ray.told', *words)}"
    submitted = answer(partial(server.submit_job, entrypoint=command, submission_id=job), SUBMIT_S)
    if isinstance(submitted, Fault):
        yield _not(address, submitted.reason)
        return
    over = False
    try:
        for line in _lines(server, job):
            heard = told.read(line)
            over = over or isinstance(heard, tuple)
            if heard is not None:
                yield heard
        if not over:
            over = True
            yield _not(address, _why(server, job))
    except ConnectionError as error:
        yield _not(address, str(error))
    finally:
        if not over:
            answer(partial(server.stop_job, job))


def _not(address: str, why: str, would_do: str = ELSE) -> told.Said:
    return 1, f"✗ {address}: {why}; {would_do}\n"


def _lines(server: JobSubmissionClient, job: str) -> Iterator[str]:
    """Of the job's log, as they come, until it ends. Raises `ConnectionError` where the head is gone."""
    chunks: AsyncIterator[str] = server.tail_job_logs(job)
    half = ""
    with asyncio.Runner() as runner:
        while chunk := attempt(partial(runner.run, _next(chunks))):
            if isinstance(chunk, Fault):
                raise ConnectionError(chunk.reason)
            *whole, half = (half + chunk).split("\n")
            yield from whole


async def _next(chunks: AsyncIterator[str]) -> str:
    """Empty at the end."""
    return await anext(chunks, "")


def _why(server: JobSubmissionClient, job: str) -> str:
    found = answer(partial(server.get_job_info, job))
    if isinstance(found, Fault):
        return found.reason
    code = ended(found)
    return "its head has no rlrun" if code == NO_RLRUN else f"Ray job {job} ended with {code}"
