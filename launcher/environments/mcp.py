"""Tools of an MCP server: `environment=mcp environment.command=[python,server.py]`, by the official SDK.

Each episode has its own server process, with standard input and output as the transport; the run's reward scores the
last answer.
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
    """A tool of a server, with the interface of `Tool`; `function` calls it on the episode's server."""

    def __init__(self, listed: Any, session: McpSession | None) -> None:
        self.name, self.parameters, self.session = listed.name, listed.input_schema, session
        function = {"name": listed.name, "description": listed.description or "", "parameters": listed.input_schema}
        self.schema = {"type": "function", "function": function}

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments; texts in place of other types are read as JSON. The server validates them."""
        types = self.parameters.get("properties", {})
        texts = {name for name in arguments if types.get(name, {}).get("type", "string") == "string"}
        return {name: value if name in texts else read_json(value) for name, value in arguments.items()}

    async def function(self, **named: Any) -> str:
        assert self.session
        return await self.session.call(self.name, named)


class McpSession(ToolSession):
    """A connection to a server. One task opens and closes it, as the SDK requires."""

    def __init__(self, settings: McpEnvironment) -> None:
        super().__init__(None, settings, {tool.name: McpTool(tool, self) for tool in settings.listed})
        self.environment, self.closing = settings, asyncio.Event()
        self.running: asyncio.Task[None] | None = None
        self.client: Any = None

    async def reset(self, row: Row) -> None:  # type: ignore[override]  # it is awaited where it is called
        ready = asyncio.get_running_loop().create_future()
        self.running = asyncio.ensure_future(self._hold_connection(ready))
        await asyncio.wait({ready, self.running}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await self.running
            raise RuntimeError("the server has ended")
        self.client = ready.result()

    async def _hold_connection(self, ready: asyncio.Future[Any]) -> None:
        async with self.environment.client() as client:
            ready.set_result(client)
            await self.closing.wait()

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The text of a tool's result. Raises `ValueError` with that text if it is an error, for the policy to read."""
        result = await self.client.call_tool(name, arguments)
        text = "\n".join(block.text if block.type == "text" else f"[{block.type}]" for block in result.content)
        if result.is_error:
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

    def problems(self) -> list[Problem]:
        if not find_spec("mcp"):
            return [
                Problem("environment", "the package mcp is not installed", "pip install 'rlrun[mcp]'", "not-installed")
            ]
        return [] if self.command else [Problem("environment.command", "is empty", "use [PROGRAM,ARGUMENT,...]")]

    def missing_requirements(self) -> list[Problem]:
        unset = [name for name in self.variables if name not in os.environ]
        problems = [Problem("environment.variables", f"{name} is not set", f"export {name}=...") for name in unset]
        return problems or super().missing_requirements()

    def with_absolute_paths(self) -> Self:
        return replace(self, folder=str(Path(self.folder).expanduser().resolve()))

    def session(self) -> Session:
        return McpSession(self)

    def client(self) -> Any:
        """A client, not yet connected, of a new server process."""
        import mcp  # noqa: PLC0415  late: an optional package

        program, *arguments = self.command
        variables = {name: os.environ[name] for name in self.variables}
        server = mcp.StdioServerParameters(command=program, args=arguments, env=variables, cwd=self.folder)
        return mcp.Client(server, read_timeout_seconds=self.tool_timeout_s)

    @cached_property
    def listed(self) -> list[Any]:
        """The server's tools, by a process started only for this. Raises `ValueError` for unknown `names`."""
        return asyncio.run(self._list_tools())

    async def _list_tools(self) -> list[Any]:
        async with self.client() as client:
            tools = (await client.list_tools()).tools
        missing = [name for name in self.names if name not in {tool.name for tool in tools}]
        if missing:
            raise ValueError(f"the server has no tool {missing[0]}; it has {', '.join(tool.name for tool in tools)}")
        return [tool for tool in tools if not self.names or tool.name in self.names]
