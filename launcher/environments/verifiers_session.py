"""Episodes of an environment of verifiers; imported only by the Python of verifiers' virtual environment.

verifiers runs its own rollouts. The model endpoint that they call is an HTTP server in this process: each call is a
turn, and the response is what the policy generates for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from argparse import Namespace
from contextlib import AsyncExitStack
from functools import cache, partial
from itertools import islice
from typing import Any

import httpx
import verifiers.v1 as vf
from aiohttp import web
from openai import AsyncOpenAI
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.dialects.chat import ChatDialect, message_to_wire
from verifiers.v1.harnesses.null.harness import NullHarness
from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
from verifiers.v1.utils.loaders import default_harness_id, load_environment, resolve_env_config

from launcher.core.user_code import Raised, caught_awaiting, shorten
from launcher.environments.tools import text_of
from launcher.spec.data import Message, Row, prompt_turns
from launcher.spec.environment import Final, History, Observation, Outcome, Session, Spoken, ToolUse

__all__ = ["ChatHarness"]  # where verifiers looks for a harness class
PROGRAM = dict[str, Any](__name__="verifiers_chat")
exec(compile(CHAT_PROGRAM_SOURCE, "verifiers_chat", "exec"), PROGRAM)
STOPS: dict[str, Outcome] = {"max_turns": "turn-limit", "max_total_tokens": "token-limit"}
"""Outcomes by stop condition of verifiers; all others are `finished`."""


class ChatHarness(NullHarness):
    """verifiers' chat program (its harness `null`) run in this process, as starting a process takes seconds."""

    async def setup(self, runtime: Any) -> None:
        """Nothing to install."""

    async def launch(self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str],
                     data: Any, tool_interception_url: str | None = None) -> Any:  # fmt: skip
        no_tools = {"bash": False, "edit": False, "search": False}
        args = Namespace(**no_tools, api_key=secret, tool_interception_url=tool_interception_url)
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack, httpx.AsyncClient(verify=False, timeout=None) as http:
            client = AsyncOpenAI(base_url=endpoint, api_key=secret, http_client=http, max_retries=0)
            tools, dispatch, clients = await PROGRAM["connect_mcp"]({"mcpServers": servers}, stack)
            compactor = PROGRAM["Compactor"](client, ctx.model, tools, False, None)
            chat = partial(PROGRAM["run_chat_loop"], args, compactor, opening(self, data), dispatch, clients, http)
            result = await caught_awaiting(chat)
        code = result.error.code if isinstance(result, Raised) and isinstance(result.error, SystemExit) else 0
        if isinstance(result, Raised) and not code:
            raise result.error
        return vf.ProgramResult(exit_code=code, stdout="", stderr="")


def opening(harness: Any, data: Any) -> list[dict[str, Any]]:
    """The first messages of a chat about a task, in OpenAI's format."""
    system, prompt = harness.resolve_prompt(data)
    turns = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt or []
    return [message_to_wire(turn) for turn in ([vf.SystemMessage(content=system)] if system else []) + list(turns)]


def texts_of(turns: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Role and text of each message. Raises `RuntimeError` where one has other parts than text."""
    pairs = []
    for turn in turns:
        content = turn.get("content") or ""
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if other_types := [part["type"] for part in parts if part["type"] != "text"]:
            raise RuntimeError(f"a message has a part {other_types[0]}, and the policy reads texts")
        pairs.append((turn["role"], "".join(part["text"] for part in parts)))
    return pairs


class VerifiersRollouts:
    """An environment of verifiers, and the server of the model that its rollouts call."""

    def __init__(self, of: Any) -> None:
        """`of` are the settings. Raises `ValueError` where the environment has several agents."""
        sys.modules["rlrun_chat"] = sys.modules[__name__]
        args = {**of.args, "taskset": {**of.args.get("taskset", {}), "id": of.id}}
        roles = agent_config_fields(resolve_env_config(args))
        if len(roles) != 1:
            raise ValueError(f"it has {len(roles)} agents ({', '.join(roles)}), and an episode is of one")
        (role,) = roles
        agent, bundled = {"runtime": {"type": "subprocess"}, **args.get(role, {})}, default_harness_id(of.id)
        defaults = {"id": "rlrun_chat" if bundled == "bash" else bundled, "tool_timeout": of.tool_timeout_s}
        agent["harness"] = {**defaults, **agent.get("harness", {})}
        agent["max_turns"] = min(agent.get("max_turns") or of.max_turns, of.max_turns)
        self.env = load_environment(resolve_env_config({**args, role: agent}))
        self.harness, self.by_trace = self.env._harnesses[role], dict[str, VerifiersSession]()
        self.starting: asyncio.Task[Any] | None = None

    async def started(self) -> Any:
        """The model's context, with the server and tools of all episodes; started once, whatever episode times out."""
        if not self.starting or (self.starting.done() and self.starting.exception()):
            self.starting = asyncio.ensure_future(self._start())
        return await asyncio.shield(self.starting)

    async def _start(self) -> Any:
        """Start the server; returns the context by which verifiers calls the model."""
        application = web.Application(client_max_size=2**30)
        application.router.add_post("/v1/chat/completions", self._handle_call)
        self.serving = self.env.serving()
        await self.serving.__aenter__()
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        client = EvalClientConfig(base_url=address, api_key_var="RLRUN_NO_KEY")
        return ModelContext(model="policy", client=client)

    async def _handle_call(self, request: Any) -> Any:
        """Handle a call of the model: wait for the policy's completion; status 400 where the episode has ended."""
        body, reply = await request.json(), asyncio.get_running_loop().create_future()
        self.by_trace[request.headers["X-Session-ID"]].calls.put_nowait((body, reply))
        raw = await reply
        if raw is None:
            return web.json_response({"error": {"message": "the policy says no more"}}, status=400)
        if body.get("stream"):
            return web.Response(body=b"".join(ChatDialect().stream_events(raw)), content_type="text/event-stream")
        return web.json_response(raw)


class VerifiersSession(Session):
    """A rollout of verifiers, suspended at each call of the model until the policy has answered."""

    def __init__(self, rollouts: VerifiersRollouts, most: int) -> None:
        """Messages are cut to `most` characters."""
        self.rollouts, self.most = rollouts, most
        self.calls = asyncio.Queue[tuple[dict[str, Any], asyncio.Future[Any]]]()
        self.traces, self.body = list[Any](), dict[str, Any]()
        self.running: asyncio.Future[Any] | None = None
        self.reply: asyncio.Future[Any] | None = None

    async def reset(self, row: Row) -> None:  # type: ignore[override]  # the caller awaits it
        if "task" not in row.extra_info:
            raise RuntimeError("the row holds no task of verifiers; use data=verifiers")
        cls = type(self.rollouts.env.taskset).task_type()
        data = cls.data_type().model_validate(row.extra_info["task"])
        await self.first_call(cls(data, self.rollouts.env.config.taskset.task))
        if texts_of(self.body["messages"]) != prompt_turns(row):
            raise RuntimeError("verifiers asks the model something else than the prompt of the row")
        if self.body.get("tools", []) != row.template_args.get("tools", []):
            raise RuntimeError("the tools of this task are not those of the first task")

    async def first_call(self, task: Any) -> None:
        context = await self.rollouts.started()
        (slot,) = self.rollouts.env.slots(task)
        self.running = asyncio.ensure_future(self.rollouts.env.run_slot(slot, context, on_trace=self._add_trace))
        if not await self._wait_for_call():
            raise RuntimeError(self._rollout_outcome().reason or "it asks the model nothing")

    def _add_trace(self, trace: Any) -> None:
        self.traces.append(trace)
        self.rollouts.by_trace[trace.id] = self

    async def _wait_for_call(self) -> bool:
        """Wait for the next call of the model; False if the rollout ends first."""
        assert self.running
        call = asyncio.ensure_future(self.calls.get())
        await asyncio.wait({call, self.running}, return_when=asyncio.FIRST_COMPLETED)
        if not self.running.done():
            self.body, self.reply = call.result()
            return True
        call.cancel()
        return False

    def _rollout_outcome(self) -> Observation:
        """The outcome of the ended rollout. Errors of verifiers are environment faults."""
        assert self.running
        episode = self.running.result()
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        stop = episode.traces[-1].stop_condition if episode.traces else ""
        if episode.is_timeout or any(trace.is_timeout for trace in episode.traces):
            return Observation(ended="timeout", reason=f"verifiers stopped it: {stop}")
        if errors or not episode.ok or len(episode.traces) != 1:
            rollout_count = f"{len(episode.traces)} rollouts were run for one episode"
            why = f"{errors[-1].type}: {errors[-1].message}" if errors else rollout_count
            return Observation(ended="environment-fault", reason=shorten(" ".join(why.split())))
        return Observation(ended=STOPS.get(stop, "token-limit" if stop.endswith("_tokens") else "finished"))

    async def step(self, episode: History, answer: Spoken) -> Observation:
        assert self.reply
        before, start = self.body["messages"], time.monotonic()
        self.reply.set_result(completion(answer))
        if not await self._wait_for_call():
            return self._rollout_outcome()
        after = self.body["messages"]
        is_extension = len(after) > len(before) and texts_of(after[: len(before)]) == texts_of(before)
        if not is_extension or after[len(before)]["role"] != "assistant":
            why = "verifiers has rewritten earlier turns, or asks the same again, and an episode is one conversation"
            raise RuntimeError(why)
        new_turns = after[len(before) + 1 :]
        messages = [
            Message(role, text_of(text, self.most), {key: turn[key] for key in ("name", "tool_call_id") if key in turn})
            for turn, (role, text) in zip(new_turns, texts_of(new_turns), strict=True)
        ]
        results = [message.content for message in messages if message.role == "tool"]
        seconds = (time.monotonic() - start) / max(len(results), 1)
        uses = [
            ToolUse(
                call.name, json.dumps(call.arguments), text, seconds, text if text.lower().startswith("error") else ""
            )
            for call, text in zip(answer.calls, results, strict=False)
        ]
        return Observation(tuple(messages), uses=tuple(uses))

    async def reward(self, episode: History) -> Final:  # type: ignore[override]  # it is awaited where it is called
        """verifiers' own reward. A rollout that still waits, at a limit of rlrun, is stopped and then scored."""
        assert self.running
        if not self.running.done():
            for trace in self.traces:
                trace.stop(next((stop for stop, outcome in STOPS.items() if outcome == episode.outcome), "max_turns"))
            assert self.reply
            self.reply.set_result(None)
            await asyncio.wait({self.running})
        if reason := self._rollout_outcome().reason:
            return Final(fault=reason)
        (trace,) = self.traces
        parts = {name: reward.value for name, reward in trace.rewards.items() if reward}
        return Final(trace.reward, parts, {name: value for name, value in trace.metrics.items() if value is not None})

    async def close(self) -> None:  # type: ignore[override]  # it is awaited where it is called
        """Cancel the rollout, and answer pending calls of the model, whose handlers would wait for ever."""
        for trace in self.traces:
            self.rollouts.by_trace.pop(trace.id, None)
        if self.running:
            self.running.cancel()
            await asyncio.wait({self.running})
        for reply in [self.reply, *(self.calls.get_nowait()[1] for _ in range(self.calls.qsize()))]:
            if reply and not reply.done():
                reply.set_result(None)


def completion(spoken: Spoken) -> dict[str, Any]:
    """A policy's turn as a chat completion of OpenAI's API."""
    calls = [
        {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
        for call in spoken.calls
    ]
    thought = {"reasoning_content": spoken.thought} if spoken.thought else {}
    message = {"role": "assistant", "content": spoken.content, **thought, **({"tool_calls": calls} if calls else {})}
    reason = "tool_calls" if calls else "length" if spoken.cut else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {"id": "policy", "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]}


@cache
def _shared_rollouts(settings: str) -> VerifiersRollouts:
    return VerifiersRollouts(Namespace(**json.loads(settings)))


def session(of: Any) -> VerifiersSession:
    """A new episode of the environment with the settings `of`."""
    return VerifiersSession(_shared_rollouts(json.dumps(vars(of), default=str)), of.max_result_characters)


async def _describe_tasks(of: Any) -> dict[str, Any]:
    """The tasks with their prompts, and the tools. Where the first task's prompt is not what verifiers sends to the
    model, each task's rollout is started to read its prompt."""
    rollouts = VerifiersRollouts(of)
    all_tasks = list(islice(rollouts.env.taskset, of.n_tasks))
    if not all_tasks:
        raise RuntimeError("it has no tasks")

    async def first_request(task: Any) -> dict[str, Any]:
        probe = VerifiersSession(rollouts, 0)
        await probe.first_call(task)
        await probe.close()
        return probe.body

    first, tasks = await first_request(all_tasks[0]), []
    prompt_matches = texts_of(opening(rollouts.harness, all_tasks[0].data)) == texts_of(first["messages"])
    for task in all_tasks:
        turns = opening(rollouts.harness, task.data) if prompt_matches else (await first_request(task))["messages"]
        tasks.append({"prompt": texts_of(turns), "task": task.data.model_dump(mode="json")})
    await rollouts.serving.__aexit__(None, None, None)
    return {"tasks": tasks, "tools": first.get("tools", [])}


def describe() -> None:
    """Read settings from standard input, write tasks and tools, or a fault, to standard output; all as JSON."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # verifiers' prints go to standard error
    result = asyncio.run(caught_awaiting(lambda: _describe_tasks(Namespace(**json.load(sys.stdin)))))
    why = isinstance(result, Raised) and f"{type(result.error).__name__}: {result.error}".removeprefix("RuntimeError: ")
    json.dump({"fault": shorten(" ".join(why.split()))} if why else result, out)
    out.close()
