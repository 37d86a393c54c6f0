"""Episodes of an environment of verifiers: loaded by the Python of verifiers' own environment alone.

verifiers runs its own rollouts. The model that they call is a server in this process: each call is a turn of the
policy, and is answered with what the policy says.
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

__all__ = ["ChatHarness"]  # as verifiers finds a harness
PROGRAM = dict[str, Any](__name__="verifiers_chat")
exec(compile(CHAT_PROGRAM_SOURCE, "verifiers_chat", "exec"), PROGRAM)
STOPS: dict[str, Outcome] = {"max_turns": "turn-limit", "max_total_tokens": "token-limit"}
"""Limits of verifiers in our words; what ends an episode otherwise is `finished`."""


class ChatHarness(NullHarness):
    """verifiers' own chat program (its harness `null`) in this process: to start one for each turn takes seconds."""

    async def setup(self, runtime: Any) -> None:
        """Nothing has to be installed."""

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
            found = await caught_awaiting(chat)
        code = found.error.code if isinstance(found, Raised) and isinstance(found.error, SystemExit) else 0
        if isinstance(found, Raised) and not code:
            raise found.error
        return vf.ProgramResult(exit_code=code, stdout="", stderr="")


def opening(harness: Any, data: Any) -> list[dict[str, Any]]:
    """The messages with which a chat about a task begins."""
    system, prompt = harness.resolve_prompt(data)
    turns = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt or []
    return [message_to_wire(turn) for turn in ([vf.SystemMessage(content=system)] if system else []) + list(turns)]


def texts_of(turns: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Role and text of each message. Raises `RuntimeError` where one is more than a text."""
    found = []
    for turn in turns:
        content = turn.get("content") or ""
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if others := [part["type"] for part in parts if part["type"] != "text"]:
            raise RuntimeError(f"a message has a part {others[0]}, and the policy reads texts")
        found.append((turn["role"], "".join(part["text"] for part in parts)))
    return found


class VerifiersRollouts:
    """An environment of verifiers with the model that it calls."""

    def __init__(self, of: Any) -> None:
        """`of` are the settings. Raises `ValueError` where they name what cannot be run."""
        sys.modules["rlrun_chat"] = sys.modules[__name__]
        args = {**of.args, "taskset": {**of.args.get("taskset", {}), "id": of.id}}
        roles = agent_config_fields(resolve_env_config(args))
        if len(roles) != 1:
            raise ValueError(f"it has {len(roles)} agents ({', '.join(roles)}), and an episode is of one")
        (role,) = roles
        agent, bundled = {"runtime": {"type": "subprocess"}, **args.get(role, {})}, default_harness_id(of.id)
        usual = {"id": "rlrun_chat" if bundled == "bash" else bundled, "tool_timeout": of.tool_timeout_s}
        agent["harness"] = {**usual, **agent.get("harness", {})}
        agent["max_turns"] = min(agent.get("max_turns") or of.max_turns, of.max_turns)
        self.env = load_environment(resolve_env_config({**args, role: agent}))
        self.harness, self.by_trace = self.env._harnesses[role], dict[str, VerifiersSession]()
        self.starting: asyncio.Task[Any] | None = None

    async def started(self) -> Any:
        """The server and the tools that all episodes share, once; an episode that waits too long ends alone."""
        if not self.starting or (self.starting.done() and self.starting.exception()):
            self.starting = asyncio.ensure_future(self._start())
        return await asyncio.shield(self.starting)

    async def _start(self) -> Any:
        """What verifiers calls the model with."""
        application = web.Application(client_max_size=2**30)
        application.router.add_post("/v1/chat/completions", self._answer)
        self.serving = self.env.serving()
        await self.serving.__aenter__()
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        client = EvalClientConfig(base_url=address, api_key_var="RLRUN_NO_KEY")
        return ModelContext(model="policy", client=client)

    async def _answer(self, request: Any) -> Any:
        """A call of the model; it is refused where the policy says no more."""
        body, reply = await request.json(), asyncio.get_running_loop().create_future()
        self.by_trace[request.headers["X-Session-ID"]].calls.put_nowait((body, reply))
        raw = await reply
        if raw is None:
            return web.json_response({"error": {"message": "the policy says no more"}}, status=400)
        if body.get("stream"):
            return web.Response(body=b"".join(ChatDialect().stream_events(raw)), content_type="text/event-stream")
        return web.json_response(raw)


class VerifiersSession(Session):
    """A rollout of verifiers, which waits for the policy at each call of the model."""

    def __init__(self, rollouts: VerifiersRollouts, most: int) -> None:
        """`most` characters of a message are read."""
        self.rollouts, self.most = rollouts, most
        self.calls = asyncio.Queue[tuple[dict[str, Any], asyncio.Future[Any]]]()
        self.traces, self.body = list[Any](), dict[str, Any]()
        self.running: asyncio.Future[Any] | None = None
        self.reply: asyncio.Future[Any] | None = None

    async def reset(self, row: Row) -> None:  # type: ignore[override]  # it is awaited where it is called
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
        self.running = asyncio.ensure_future(self.rollouts.env.run_slot(slot, context, on_trace=self._minted))
        if not await self._called():
            raise RuntimeError(self._ended().reason or "it asks the model nothing")

    def _minted(self, trace: Any) -> None:
        self.traces.append(trace)
        self.rollouts.by_trace[trace.id] = self

    async def _called(self) -> bool:
        """Wait for the next call of the model; False where the rollout has ended."""
        assert self.running
        call = asyncio.ensure_future(self.calls.get())
        await asyncio.wait({call, self.running}, return_when=asyncio.FIRST_COMPLETED)
        if not self.running.done():
            self.body, self.reply = call.result()
            return True
        call.cancel()
        return False

    def _ended(self) -> Observation:
        """Why the rollout has ended. What verifiers calls an error is a fault."""
        assert self.running
        episode = self.running.result()
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        stop = episode.traces[-1].stop_condition if episode.traces else ""
        if episode.is_timeout or any(trace.is_timeout for trace in episode.traces):
            return Observation(ended="timeout", reason=f"verifiers stopped it: {stop}")
        if errors or not episode.ok or len(episode.traces) != 1:
            many = f"{len(episode.traces)} rollouts were run for one episode"
            why = f"{errors[-1].type}: {errors[-1].message}" if errors else many
            return Observation(ended="environment-fault", reason=shorten(" ".join(why.split())))
        return Observation(ended=STOPS.get(stop, "token-limit" if stop.endswith("_tokens") else "finished"))

    async def step(self, episode: History, answer: Spoken) -> Observation:
        assert self.reply
        before, begun = self.body["messages"], time.monotonic()
        self.reply.set_result(completion(answer))
        if not await self._called():
            return self._ended()
        after = self.body["messages"]
        kept = len(after) > len(before) and texts_of(after[: len(before)]) == texts_of(before)
        if not kept or after[len(before)]["role"] != "assistant":
            why = "verifiers has rewritten earlier turns, or asks the same again, and an episode is one conversation"
            raise RuntimeError(why)
        new = after[len(before) + 1 :]
        messages = [
            Message(role, text_of(text, self.most), {key: turn[key] for key in ("name", "tool_call_id") if key in turn})
            for turn, (role, text) in zip(new, texts_of(new), strict=True)
        ]
        results = [message.content for message in messages if message.role == "tool"]
        seconds = (time.monotonic() - begun) / max(len(results), 1)
        uses = [
            ToolUse(
                call.name, json.dumps(call.arguments), text, seconds, text if text.lower().startswith("error") else ""
            )
            for call, text in zip(answer.calls, results, strict=False)
        ]
        return Observation(tuple(messages), uses=tuple(uses))

    async def reward(self, episode: History) -> Final:  # type: ignore[override]  # it is awaited where it is called
        """verifiers' own. A rollout that waits is stopped, at a limit of ours, and scored as it stands."""
        assert self.running
        if not self.running.done():
            for trace in self.traces:
                trace.stop(next((stop for stop, outcome in STOPS.items() if outcome == episode.outcome), "max_turns"))
            assert self.reply
            self.reply.set_result(None)
            await asyncio.wait({self.running})
        if reason := self._ended().reason:
            return Final(fault=reason)
        (trace,) = self.traces
        parts = {name: reward.value for name, reward in trace.rewards.items() if reward}
        return Final(trace.reward, parts, {name: value for name, value in trace.metrics.items() if value is not None})

    async def close(self) -> None:  # type: ignore[override]  # it is awaited where it is called
        """End the rollout, and answer the calls of the model that wait: their handlers would stay."""
        for trace in self.traces:
            self.rollouts.by_trace.pop(trace.id, None)
        if self.running:
            self.running.cancel()
            await asyncio.wait({self.running})
        for reply in [self.reply, *(self.calls.get_nowait()[1] for _ in range(self.calls.qsize()))]:
            if reply and not reply.done():
                reply.set_result(None)


def completion(spoken: Spoken) -> dict[str, Any]:
    """What the policy says, as OpenAI's API has it."""
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
def _rollouts(settings: str) -> VerifiersRollouts:
    return VerifiersRollouts(Namespace(**json.loads(settings)))


def session(of: Any) -> VerifiersSession:
    """An episode of the environment with these settings."""
    return VerifiersSession(_rollouts(json.dumps(vars(of), default=str)), of.max_result_characters)


async def _described(of: Any) -> dict[str, Any]:
    """The tasks with their prompts, and the tools. Where the prompt of the first task is not what the model is asked,
    that of each task is looked up."""
    rollouts = VerifiersRollouts(of)
    every = list(islice(rollouts.env.taskset, of.n_tasks))
    if not every:
        raise RuntimeError("it has no tasks")

    async def asked(task: Any) -> dict[str, Any]:
        one = VerifiersSession(rollouts, 0)
        await one.first_call(task)
        await one.close()
        return one.body

    first, tasks = await asked(every[0]), []
    plain = texts_of(opening(rollouts.harness, every[0].data)) == texts_of(first["messages"])
    for task in every:
        turns = opening(rollouts.harness, task.data) if plain else (await asked(task))["messages"]
        tasks.append({"prompt": texts_of(turns), "task": task.data.model_dump(mode="json")})
    await rollouts.serving.__aexit__(None, None, None)
    return {"tasks": tasks, "tools": first.get("tools", [])}


def describe() -> None:
    """Settings in standard input -> tasks and tools in standard output, or a fault."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what verifiers prints
    found = asyncio.run(caught_awaiting(lambda: _described(Namespace(**json.load(sys.stdin)))))
    why = isinstance(found, Raised) and f"{type(found.error).__name__}: {found.error}".removeprefix("RuntimeError: ")
    json.dump({"fault": shorten(" ".join(why.split()))} if why else found, out)
    out.close()
