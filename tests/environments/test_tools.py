"""Tools of a class, of MCP servers and of the sandbox: schemas, calls, and what they cost when they fail."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from launcher.environments.calling import Refused
from launcher.environments.code import CodeEnvironment
from launcher.environments.mcp import McpEnvironment
from launcher.environments.processes import Processes
from launcher.environments.tools import Tool, tools_of
from launcher.preflight.checks.environment import Player
from launcher.rewards.code import Code
from launcher.spec.data import Message, Row
from launcher.spec.environment import Environment, Final, Observation, Spoken, ToolCall

ROW = Row("rows:1", "What does soap cost?")
Play = Callable[..., tuple[list[Observation], Final]]


@pytest.fixture
def play() -> Iterator[Play]:
    """Plays an episode with these calls, a turn each."""
    running = dict[int, Processes]()

    def episode(environment: Environment, *calls: tuple[str, dict[str, Any]]) -> tuple[list[Observation], Final]:
        sessions = running.setdefault(id(environment), Processes(replace(environment, workers=1)))
        turns = [Spoken("", "", (ToolCall(name, arguments, "c"),)) for name, arguments in calls]
        played = Player(environment, sessions).play(ROW, turns)
        return [*played.observations], played.final

    yield episode
    for each in running.values():
        each.close()


# ---- a class


class Shop:
    kept = 3

    def reset(self, row: Row) -> None: ...

    def price(self, item: str, count: int = 1, sizes: list[int] | None = None) -> float:
        """What an item
        costs."""
        return 2.5 * count

    async def wait(self) -> None: ...

    def _hidden(self, item: str) -> None: ...

    def reward(self, episode: Any) -> float: ...


def test_schemas_are_made_of_types_and_docstrings() -> None:
    found = tools_of(Shop())
    assert list(found) == ["price", "wait"]
    assert found["price"].schema == {
        "type": "function",
        "function": {
            "name": "price",
            "description": "What an item costs.",
            "parameters": {
                "type": "object",
                "properties": {
                    "item": {"type": "string"},
                    "count": {"type": "integer", "default": 1},
                    "sizes": {
                        "anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}],
                        "default": None,
                    },
                },
                "required": ["item"],
            },
        },
    }


@pytest.mark.parametrize(("arguments", "expected"), [
    ({"item": "soap"}, {"item": "soap", "count": 1, "sizes": None}),
    ({"item": "soap", "count": "2"}, {"item": "soap", "count": 2, "sizes": None}),  # as forms with texts only have it
    ({"item": 7, "sizes": "[1, 2]"}, {"item": "7", "count": 1, "sizes": [1, 2]}),
    ({"item": "soap", "sizes": "null"}, {"item": "soap", "count": 1, "sizes": None}),
    ({"item": "soap", "count": "two"}, "count: input should be a valid integer"),
    ({"count": 1}, "item: field required"),
    ({"item": "soap", "colour": "red"}, "colour: extra inputs are not permitted"),
    ({"item": ["soap"]}, "item: input should be a valid string"),
])  # fmt: skip
def test_arguments_have_the_types_that_the_method_names(arguments: dict[str, Any], expected: Any) -> None:
    found = Tool("price", Shop().price).checked(arguments)
    if isinstance(expected, str):
        assert isinstance(found, str) and found.startswith(expected)
        assert found.endswith("the arguments of price are item, count, sizes")
    else:
        assert found == expected


def test_decorated_methods_are_tools() -> None:
    class Decorated:
        @staticmethod
        def twice(a: int) -> int: ...
        @classmethod
        def thrice(cls, a: int) -> int: ...
        @lru_cache  # noqa: B019
        def square(self, a: int) -> int: ...

    assert [each.schema["function"]["parameters"]["required"] for each in tools_of(Decorated()).values()] == [["a"]] * 3


def test_limits_of_an_argument_are_kept_and_no_name_is_taken() -> None:
    def look(copy: Annotated[int, Field(le=5, description="Pages.")], _from: str = "a") -> None: ...

    found = Tool("look", look)
    properties = found.schema["function"]["parameters"]["properties"]
    assert properties["copy"] == {"type": "integer", "maximum": 5, "description": "Pages."} and "_from" in properties
    assert found.checked({"copy": 5}) == {"copy": 5, "_from": "a"}
    assert str(found.checked({"copy": 6})).startswith("copy: input should be less than or equal to 5")


class Unnamed:
    def look(self, *at: str) -> None: ...


class Unwritable:
    def find(self, at: Nothing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(("holder", "expected"), [
    (Unnamed(), r"tool look: \*at: .*str.* cannot be given by name; use .*; one that is none begins with _"),
    (Unwritable(), "tool find: NameError: name 'Nothing' is not defined"),
])  # fmt: skip
def test_a_method_that_can_be_no_tool_is_named(holder: object, expected: str) -> None:
    with pytest.raises(Refused, match=expected):
        tools_of(holder)


# ---- MCP


SERVER = """
import os, sys, time
from mcp.server.mcpserver import MCPServer

server, begun = MCPServer("shop"), []

@server.tool()
def price(item: str, count: int = 1) -> float:
    \"\"\"What an item costs.\"\"\"
    begun.append(item)
    return {"soap": 2.5}[item] * count

@server.tool()
def asked() -> list[str]:
    return begun

@server.tool()
def hang() -> str:
    time.sleep(600)

@server.tool()
def die() -> str:
    os._exit(3)

@server.tool()
def key() -> str:
    return os.environ.get("SHOP_KEY", "none") + os.environ.get("OTHER_KEY", "none")

server.run()
"""


@pytest.fixture
def server(tmp_path: Path) -> Callable[..., McpEnvironment]:
    def made(text: str = SERVER, **settings: Any) -> McpEnvironment:
        (tmp_path / "server.py").write_text(textwrap.dedent(text))
        values: dict[str, Any] = {"command": (sys.executable, "server.py"), "folder": str(tmp_path), **settings}
        return McpEnvironment(**values)

    return made


def texts(seen: list[Observation]) -> list[str]:
    return [message.content for each in seen for message in each.messages]


def test_the_tools_of_a_server(
    server: Callable[..., McpEnvironment], play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEY", "k")
    monkeypatch.setenv("OTHER_KEY", "o")
    environment = server(variables=("SHOP_KEY",))
    schemas = {each["function"]["name"]: each["function"] for each in environment.tools()}
    assert list(schemas) == ["price", "asked", "hang", "die", "key"] and not environment.problems()
    assert schemas["price"]["description"] == "What an item costs."
    assert set(schemas["price"]["parameters"]["properties"]) == {"item", "count"}
    (begun, *seen), final = play(
        environment, ("price", {"item": "soap", "count": "2"}), ("price", {"item": "rope"}), ("price", {}),
        ("none", {}), ("asked", {}), ("key", {}),
    )  # fmt: skip
    right, wrong, missing, unknown, asked, key = texts(seen)
    assert begun.ended is None and right == "5.0" and asked.split() == ["soap", "rope"] and key == "knone"
    assert wrong == "Error: ValueError: Error executing tool price" and "item" in missing
    assert unknown == "Error: there is no tool none; use price, asked, hang, die, key"
    assert final == Final(), "the run's reward scores it"
    (_, again), _ = play(environment, ("asked", {}))
    assert texts([again]) == [""], "each episode has a server of its own"


def test_a_server_that_hangs_or_dies_costs_its_episode(server: Callable[..., McpEnvironment], play: Play) -> None:
    environment = server(tool_timeout_s=10.0)
    for tool, ended, expected in (
        ("hang", "timeout", "tool hang took longer than 10 s"), ("die", "environment-fault", ""),
    ):  # fmt: skip
        seen, final = play(environment, ("price", {"item": "soap"}), (tool, {}))
        assert texts(seen) == ["2.5"] and expected in seen[-1].reason, "each episode has a server of its own"
        assert seen[-1].ended in (ended, "timeout") and seen[-1].reason and final.fault


@pytest.mark.parametrize(
    "text", ["import sys; sys.exit(1)", "print('hello', flush=True); import time; time.sleep(600)"]
)
def test_a_server_that_does_not_answer_is_refused_with_a_reason(
    server: Callable[..., McpEnvironment], text: str
) -> None:
    (problem,) = server(text, tool_timeout_s=2.0).missing_requirements()
    assert problem.where == "environment" and "cannot be loaded" in problem.got


def test_what_is_wrong_with_a_server_is_said_before_it_starts(server: Callable[..., McpEnvironment]) -> None:
    (problem,) = server(variables=("NOT_SET_ANYWHERE",)).missing_requirements()
    assert problem.got == "NOT_SET_ANYWHERE is not set"
    (problem,) = server(names=("prices",)).missing_requirements()
    assert "the server has no tool prices; it has price, asked" in problem.got
    (problem,) = server(command=()).problems()
    assert problem.where == "environment.command"


# ---- the sandbox


def test_programs_run_in_the_sandbox(play: Play, tmp_path: Path) -> None:
    environment = CodeEnvironment(sandbox=Code(timeout_s=2.0))
    assert [each["function"]["name"] for each in environment.tools()] == ["run_python"]
    programs = [
        "print(6 * 7)", "x = 1 / 0", "while True: pass", f"open({str(tmp_path / 'a')!r}, 'w')", "print('x' * 10**8)",
        "import socket; socket.create_connection(('127.0.0.1', 9))", "import os; os._exit(3)", "def",
        "import sys; sys.exit(2)", "print(x)",
    ]  # fmt: skip
    (begun, *seen), final = play(environment, *[("run_python", {"code": each}) for each in programs])
    assert begun.ended is None and not any(each.ended for each in seen) and final == Final()
    right, zero, late, write, much, network, died, syntax, left, name = texts(seen)
    assert right == "42\n"
    assert zero.splitlines()[-2:] == ["    x = 1 / 0", "        ~~^~~"] or zero.endswith(
        "ZeroDivisionError: division by zero\n"
    )
    assert late == "Error: ValueError: the program took longer than 2 s"
    assert "Error: [Errno" in write and not (tmp_path / "a").exists()
    assert much.startswith("Error: ValueError: the program printed more than")
    assert "Error" in network and "Refused" not in network
    assert died == "Error: ValueError: the program ended with exit code 3" and "SyntaxError" in syntax
    assert left.startswith("Error") or left == ""
    assert "NameError" in name, "nothing is left of the programs before"


def test_the_last_answer_is_scored_by_the_reward_of_the_run(play: Play) -> None:
    environment = CodeEnvironment(system_prompt="Answer.")
    row = environment.prompt(ROW)
    assert (
        row.prompt == (Message("system", "Answer."), Message("user", "What does soap cost?")) and not environment.scores
    )
    assert [each["function"]["name"] for each in row.template_args["tools"]] == ["run_python"]
