"""Files of a model that nobody could mean: each is named, quickly, before anything is loaded from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import launch_model
import pytest

from launcher.models import adapter, config, weights


def test_entries_as_publishers_have_them_are_none() -> None:
    healthy = {"model_type": "llama", "dtype": "bfloat16", "rope_theta": 10000, "rope_scaling": None,
               "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}  # fmt: skip
    assert config.content_faults(healthy) == []
    stretched = {**healthy, "rope_scaling": {"rope_type": "linear", "factor": 1e300}}
    (line,) = map(str, config.content_faults(stretched))
    assert line.startswith("rope_scaling.factor is 1e+300 in config.json; use factor above 0")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", b"\xff\xfe{"), ("chat_template.jinja", b"a" * 17 * 2**20), ("added_tokens.json", b"[]"),
        ("tokenizer_config.json", b'{"chat_template": [[[]]]}'), ("tokenizer_config.json", b'{"chat_template": 5}'),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}, {"template": "x"}]}'),
    ],
)  # fmt: skip
def test_a_file_that_is_no_template_or_no_tokens_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    (line,) = map(str, config.faults(tmp_path))
    assert line.startswith(f"{tmp_path / name}: ")


def test_named_templates_are_in_order(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "{{ messages }}"}, {"name": "tools", "template": ""}]
    for given in (named, "{{ messages }}", None, {"default": "x"}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": given}))
        assert config.faults(tmp_path) == []


@pytest.mark.parametrize(
    "entry",
    [
        {"shape": [-1]}, {"shape": [2**62]}, {"shape": [10**400]}, {"dtype": "X9"}, {"dtype": [1]}, {"dtype": "F64"},
        {"data_offsets": [4, 8]}, {"data_offsets": [-4, 0]}, {"data_offsets": [0]}, {"data_offsets": "x"},
    ],
)  # fmt: skip
def test_a_header_that_is_none_of_safetensors_is_named(tmp_path: Path, entry: dict[str, Any]) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **entry}}).encode()
    (tmp_path / weights.SINGLE).write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    (line,) = map(str, weights.cut_faults(tmp_path))
    assert weights.SINGLE in line


@pytest.mark.parametrize("dtype", ["BOOL", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "I8"])
def test_a_header_of_any_format_is_read(tmp_path: Path, dtype: str) -> None:
    entries = {"b": {"dtype": dtype, "shape": [3], "data_offsets": [0, 3]},
               "a": {"dtype": "BF16", "shape": [0, 4], "data_offsets": [3, 3]}}  # fmt: skip
    header = json.dumps(entries).encode()
    (tmp_path / weights.SINGLE).write_bytes(len(header).to_bytes(8, "little") + header + bytes(3))
    assert weights.cut_faults(tmp_path) == []


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"r": "x"}, "r is 'x'"), ({"r": float("inf")}, "r is inf"), ({"r": -1}, "r is -1"),
        ({"peft_type": "NOPE"}, "peft_type is 'NOPE'"), ({"peft_type": None}, "peft_type is None"),
        ({"target_modules": 5}, "target_modules is 5"), ({"target_modules": r".*\.(q|v)_proj"}, ""),
        ({"target_modules": "all-linear"}, ""), ({}, ""),
    ],
)  # fmt: skip
def test_what_peft_could_not_use_is_named(tmp_path: Path, entry: dict[str, Any], named: str) -> None:
    launch_model.Model().save(base := tmp_path / "base")
    launch_model.Adapter(str(base), config=entry).save(tmp_path / "adapters")
    lines = list(map(str, adapter.problems(tmp_path / "adapters")))
    assert len(lines) == bool(named) and all(named in line and "adapter_config.json" in line for line in lines)
