"""A command of ours on a cluster's head, typed on a machine that is no node of it: a job of the head's job server."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from functools import partial
from importlib.util import find_spec

from ray.job_submission import JobDetails, JobSubmissionClient

from launcher.clusters.nodes.processes import NO_NODE
from launcher.clusters.nodes.reach import COPY
from launcher.clusters.ray import told
from launcher.clusters.ray.job_server import NO_RLRUN, SUBMIT_S, answer, client, ended, entrypoint
from launcher.core.user_code import CallFailure, try_call

NAME = "rlrun-asks-"
"""Begins the names of such jobs."""
SILENT_S = 20.0
"""Without a word; then the head is asked whether it is still there."""
ANSWERED_S = 60.0
"""After its end who asked has read all of it."""
ELSE = "a machine that is one of its nodes would do, or rlrun[jobs] here and on its head"
REFUSED, TOKEN = "it lets nobody in without its token", f"RAY_AUTH_TOKEN_PATH, of a file with {COPY}, would do"
MOST = 5  # lines that others than the command said, where it said nothing


def said(address: str, words: Sequence[str], columns: str) -> Generator[told.Said]:
    """What it says there, as it says it. Who listens no more has it stopped."""
    if not find_spec("aiohttp"):
        yield _not(address, f"{NO_NODE}, and has no client for its job server")
        return
    server = client(address)
    if isinstance(server, CallFailure):
        refused = server.kind == "AuthenticationError"
        yield _not(address, *((REFUSED, TOKEN) if refused else (server.reason, ELSE)))
        return
    _forget(server)
    job = f"{NAME}{words[0]}-{secrets.token_hex(4)}"
    command = f"export COLUMNS={columns or 80}\n{entrypoint('launcher.clusters.ray.told', *words)}"
    over = False
    try:
        submitted = answer(partial(server.submit_job, entrypoint=command, submission_id=job), SUBMIT_S)
        if isinstance(submitted, CallFailure):
            yield _not(address, submitted.reason)
            return
        others = list[str]()
        for line in _lines(server, job):
            heard = told.read(line)
            over = over or isinstance(heard, tuple)
            if heard is None:
                others = [*others[1 - MOST :], line]
            else:
                yield heard
        if not over:
            over, *why = _ended(server, job, others)
            yield _not(address, *why)
    except ConnectionError as error:
        yield _not(address, str(error), "asking again once it answers would do")
    finally:
        if not over:
            answer(partial(server.stop_job, job))


def _not(address: str, why: str, would_do: str = ELSE) -> told.Said:
    return 1, f"✗ {address}: {why}; {would_do}\n"


def _forget(server: JobSubmissionClient) -> None:
    """Have the head forget who asked before, and has been answered."""
    jobs: list[JobDetails] | CallFailure = answer(server.list_jobs)
    for one in [] if isinstance(jobs, CallFailure) else jobs:
        ended_s = (one.end_time or math.inf) / 1000
        if (one.submission_id or "").startswith(NAME) and time.time() - ended_s > ANSWERED_S:
            answer(partial(server.delete_job, one.submission_id))


def _lines(server: JobSubmissionClient, job: str) -> Iterator[str]:
    """Of the job's log, as they come, until it ends. Raises `ConnectionError` where the head is gone."""
    chunks: AsyncIterator[str] = server.tail_job_logs(job)
    half = ""
    with asyncio.Runner() as runner:
        while True:
            coming = runner.get_loop().create_task(_next(chunks))
            while not (chunk := try_call(partial(runner.run, _for_a_while(coming)))) and not coming.done():
                there = answer(partial(server.get_job_info, job))
                if isinstance(there, CallFailure):
                    raise ConnectionError(there.reason)
            if isinstance(chunk, CallFailure):
                raise ConnectionError(chunk.reason)
            if not chunk:
                return
            *whole, half = (half + chunk).split("\n")
            yield from whole


async def _next(chunks: AsyncIterator[str]) -> str:
    """Empty at the end."""
    return await anext(chunks, "")


async def _for_a_while(coming: asyncio.Task[str]) -> str:
    """Empty where it does not come in that time."""
    done, _ = await asyncio.wait([coming], timeout=SILENT_S)
    return coming.result() if done else ""


def _ended(server: JobSubmissionClient, job: str, others: Sequence[str]) -> tuple[bool, str, str]:
    """Whether the job has, why it said no more, and what would do."""
    found: JobDetails | CallFailure = answer(partial(server.get_job_info, job))
    if isinstance(found, CallFailure):
        return False, found.reason, "asking again once it answers would do"
    if not found.status.is_terminal():
        return False, "what is said there comes no more", "asking again would do"
    code, why = ended(found)
    if code == NO_RLRUN:
        return True, "its head has not this rlrun", "the same version there would do"
    return True, " ".join([f"Ray job {job} ended with {code}", why, *others]).strip(), "asking again would do"
