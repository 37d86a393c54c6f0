"""Tools of an MCP server: `environment=mcp environment.command=[python,server.py]`, by the official SDK.

Each episode has a server process of its own, which is spoken to through its standard input and output; the run's reward
scores the last answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from launcher.core.problems import Problem
from launcher.core.settings import settings
from launcher.environments.several import ForeignTools
from launcher.environments.tools import ToolSession, read_json
from launcher.spec.data import Row
from launcher.spec.environment import Session


class McpTool:
    """A tool of a server; `call` asks the server of the episode."""

    def __init__(self, listed: Any, session: McpSession | None) -> None:
        self.name, self.parameters, self.session = listed.name, listed.input_schema, session
        function = {"name": listed.name, "description": listed.description or "", "parameters": listed.input_schema}
        self.schema = {"type": "function", "function": function}

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments, those that are no texts read where a form of calls has texts only; the server checks them."""
        types = self.parameters.get("properties", {})
        texts = {name for name in arguments if types.get(name, {}).get("type", "string") == "string"}
        return {name: value if name in texts else read_json(value) for name, value in arguments.items()}

    async def function(self, **named: Any) -> str:
        assert self.session
        return await self.session.call(self.name, named)


class McpSession(ToolSession):
    """A connection that one task opens and closes, as the SDK asks for."""

    def __init__(self, settings: McpEnvironment) -> None:
        super().__init__(None, settings, {each.name: McpTool(each, self) for each in settings.listed})
        self.environment, self.closing = settings, asyncio.Event()
        self.running: asyncio.Task[None] | None = None
        self.client: Any = None

    async def reset(self, row: Row) -> None:  # type: ignore[override]  # it is awaited where it is called
        ready = asyncio.get_running_loop().create_future()
        self.running = asyncio.ensure_future(self._connected(ready))
        await asyncio.wait({ready, self.running}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await self.running
            raise RuntimeError("the server has ended")
        self.client = ready.result()

    async def _connected(self, ready: asyncio.Future[Any]) -> None:
        async with self.environment.client() as client:
            ready.set_result(client)
            await self.closing.wait()

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """What the server gives. Raises `ValueError` where it says that this is an error, for the policy to read."""
        found = await self.client.call_tool(name, arguments)
        text = "\n".join(block.text if block.type == "text" else f"[{block.type}]" for block in found.content)
        if found.is_error:
            raise ValueError(text)
        return text

    def reward(self, episode: object) -> None:
        """The run's reward scores the last answer."""

    async def close(self) -> None:  # type: ignore[override]  # it is awaited where it is called
        self.closing.set()
        if self.running:
            await asyncio.wait({self.running})


@settings
class McpEnvironment(ForeignTools):
    """Questions that are answered with the tools of a server."""

    command: tuple[str, ...]
    """The server's program and its arguments, run in `folder`."""
    folder: str = "."
    """Where it runs."""
    variables: tuple[str, ...] = ()
    """Names of environment variables that it is given beside the usual ones, such as that of a key."""
    names: tuple[str, ...] = field(default=())
    """The tools that the model may use; by default all."""

    @property
    def scores(self) -> bool:
        return False

    def problems(self) -> list[Problem]:
        if not find_spec("mcp"):
            return [
                Problem("environment", "the package mcp is not installed", "pip install 'rlrun[mcp]'", "not-installed")
            ]
        return [] if self.command else [Problem("environment.command", "is empty", "use [PROGRAM,ARGUMENT,...]")]

    def missing_requirements(self) -> list[Problem]:
        absent = [name for name in self.variables if name not in os.environ]
        found = [Problem("environment.variables", f"{name} is not set", f"export {name}=...") for name in absent]
        return found or super().missing_requirements()

    def with_absolute_paths(self) -> Self:
        return replace(self, folder=str(Path(self.folder).expanduser().resolve()))

    def session(self) -> Session:
        return McpSession(self)

    def client(self) -> Any:
        """A connection to a new server process."""
        import mcp  # noqa: PLC0415  late: an optional package

        program, *words = self.command
        given = {name: os.environ[name] for name in self.variables}
        server = mcp.StdioServerParameters(command=program, args=words, env=given, cwd=self.folder)
        return mcp.Client(server, read_timeout_seconds=self.tool_timeout_s)

    @cached_property
    def listed(self) -> list[Any]:
        """Its tools, from a server that ends again."""
        return asyncio.run(self._list())

    async def _list(self) -> list[Any]:
        async with self.client() as client:
            found = (await client.list_tools()).tools
        missing = [name for name in self.names if name not in {each.name for each in found}]
        if missing:
            raise ValueError(f"the server has no tool {missing[0]}; it has {', '.join(each.name for each in found)}")
        return [each for each in found if not self.names or each.name in self.names]
