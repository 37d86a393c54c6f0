"""What is in the files that a config of verl's names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.engines.verl import named_files

DESCRIBED = '''"""Add.

    Args:
        a (int): one
        b: other
            in two lines

    Returns:
        both
    """'''


def with_tools(tmp_path: Path, text: str) -> dict[str, Any]:
    (tmp_path / "tools.py").write_text(f"from verl.tools import function_tool as tools\n\n{text}\n")
    return rollout({"multi_turn": {"function_tool_path": str(tmp_path / "tools.py")}})


def rollout(node: dict[str, Any]) -> dict[str, Any]:
    return {"actor_rollout_ref": {"rollout": node}}


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (f"def add(a: int, b: int = 1):\n    {DESCRIBED}", ""),
        (f"async def add(a: int, *, b: 'int'):\n    {DESCRIBED}", ""),
        ("def add(): 'Add.'", ""),
        (f"def add(a, b: int):\n    {DESCRIBED}", "has no type of a"),
        (f"def add(a: int, b: int, c: int):\n    {DESCRIBED}", "does not describe c under Args: of its docstring"),
        (f"def add(*a: int):\n    {DESCRIBED}", "takes *a"),
        ("def add(a: int): ...", "has no docstring"),
    ],
)
def test_a_function_that_is_to_be_a_tool(tmp_path: Path, function: str, fault: str) -> None:
    for decorator in ("@tools.function_tool", "@tools.function_tool('plus')"):
        config = with_tools(tmp_path, f"{decorator}\n{function}\n\ndef other(a): ...")
        assert named_files.function_tools(config) == {"add": fault}
    given = with_tools(tmp_path, f"@tools.function_tool(schema={{}})\n{function}")
    assert named_files.function_tools(given) == {"add": ""}


def test_functions_that_cannot_be_read_are_not_judged(tmp_path: Path) -> None:
    assert named_files.function_tools(with_tools(tmp_path, "def add(a): ...")) == {}
    assert named_files.function_tools(with_tools(tmp_path, "from mine import *")) is None
    assert named_files.function_tools(with_tools(tmp_path, "def")) is None
    assert named_files.function_tools(rollout({})) is None
    assert (
        named_files.function_tools(rollout({"multi_turn": {"function_tool_path": str(tmp_path / "none.py")}})) is None
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import os\nclass Rows: ...\nif os:\n    other = 1\ndef made(): inner = 1", {"Rows", "os", "other", "made"}),
        ("from mine import *", None),
        ("def __getattr__(name): ...", None),
        ("globals()['Rows'] = 1", None),
    ],
)
def test_names_of_a_python_file(tmp_path: Path, text: str, names: set[str] | None) -> None:
    (tmp_path / "rows.py").write_text(text)
    path = str(tmp_path / "rows.py")
    config = {"data": {"custom_cls": {"path": path}}}
    assert named_files.objects(config, None) == ({} if names is None else {path: names})
    assert named_files.objects(config, path) == {}  # another check reads it


def test_a_python_file_that_does_not_compile(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text("import os\nclass Rows(:\n")
    found = named_files.objects({"data": {"custom_cls": {"path": f"file://{tmp_path}/rows.py"}}}, None)
    assert found == {f"file://{tmp_path}/rows.py": f"{tmp_path}/rows.py:2: invalid syntax"}


def test_lists_of_tools_and_agents(tmp_path: Path) -> None:
    listed = "tools:\n- class_name: a.B\n  config: {type: native}\n- class_name: c.D\n- 5\n"
    (tmp_path / "tools.yaml").write_text(listed)
    (tmp_path / "agents.yaml").write_text("- {name: react, _target_: a.B}\n- {name: other}\n")
    config = rollout({"multi_turn": {"tool_config_path": f"{tmp_path}/tools.yaml"},
                      "agent": {"agent_loop_config_path": f"{tmp_path}/agents.yaml"}})  # fmt: skip
    assert named_files.tools(config) == (("a.B", "native"), ("c.D", ""))
    assert named_files.agent_loops(config) == {"react": "a.B", "other": ""}
    for text in ("- 5", "a: [", "name: react"):
        (tmp_path / "agents.yaml").write_text(text)
        assert named_files.agent_loops(config) is None
    (tmp_path / "tools.yaml").write_text("tools: 5")
    assert named_files.tools(config) == () == named_files.tools(rollout({}))


def test_folders_and_the_rank_of_an_adapter(tmp_path: Path) -> None:
    model = {"lora_adapter_path": str(tmp_path), "tokenizer_path": "owner/name", "hf_config_path": f"{tmp_path}/none"}
    config = {"actor_rollout_ref": {"model": model}}
    assert named_files.folders(config) == {str(tmp_path): frozenset()}
    assert named_files.adapter_rank(config) is None
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 16}))
    assert named_files.folders(config) == {str(tmp_path): {"adapter_config.json"}}
    assert named_files.adapter_rank(config) == 16
