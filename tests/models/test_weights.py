"""Indices, headers and configurations of models: what must not be loaded is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import launch_model
import pytest
import torch
from safetensors.torch import save_file

from launcher.models import adapter, config, weights
from launcher.models.pretrained import Pretrained


def index(*names: Any) -> str:
    return json.dumps({"metadata": {}, "weight_map": {f"w{number}": name for number, name in enumerate(names)}})


BAD = [
    # what the index names, what is said of it
    (index("../model.safetensors"), "'../model.safetensors': leads out of its folder"),
    (index("deep/x.safetensors"), "'deep/x.safetensors': is not a safetensors file of the model's own folder"),
    (index("pytorch_model.bin"), "'pytorch_model.bin': is not a safetensors file"),
    (index("a.safetensors", "gone.safetensors"), "'gone.safetensors': is named by the index and is not there"),
    (index("a.safetensors", 5), "names no files in its weight_map"),
    ("{", "names no files in its weight_map"),
    ('{"weight_map": ["a.safetensors"]}', "names no files in its weight_map"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "output"), BAD, ids=[row[0][:50] for row in BAD])
def test_a_bad_index_is_refused(text: str, output: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.safetensors").write_bytes(b"")
    (tmp_path / weights.INDEX).write_text(text)
    (line,) = map(str, weights.folder_faults(tmp_path))
    assert line.startswith(f"{tmp_path / weights.INDEX}: ") and output in line
    (problem,) = map(str, Pretrained(path=str(tmp_path)).problems())  # before a run starts, too
    assert problem.startswith("model.path: ") and output in problem


def test_a_folder_that_no_loader_takes_is_refused_before_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"p")
    path = tmp_path / "model.safetensors"
    (pickle,) = map(str, Pretrained(path=str(tmp_path)).problems())
    named = "holds weights as pickle only ('pytorch_model.bin'), which can run code; use safetensors"
    assert pickle.startswith("model.path: ") and named in pickle
    save_file({"w": torch.zeros(4)}, path)
    assert Pretrained(path=str(tmp_path)).problems() == []
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])  # its header is whole
    got = f"model.path: {path}: cannot be read as safetensors, incomplete metadata, file not fully covered"
    assert list(map(str, Pretrained(path=str(tmp_path)).problems())) == [f"{got}; use the whole file"]
    path.write_bytes(whole[:20])
    (cut,) = map(str, Pretrained(path=str(tmp_path)).problems())
    assert "cannot be read as safetensors" in cut
    path.rename(tmp_path / "adapter_model.safetensors")  # of adapters it is looked at as well
    assert len(list(map(str, Pretrained(path=str(tmp_path)).problems()))) == 1
    (tmp_path / "checkpoints" / "step_000001" / "policy").mkdir(parents=True)  # a run's: an older one may verify
    (tmp_path / "checkpoints" / "step_000001" / "manifest.json").write_text("{}")
    assert Pretrained(path=str(tmp_path)).problems() == []


def test_the_shapes_of_weights_are_read_from_their_headers(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(2, dtype=torch.bfloat16)}, tmp_path / "1.safetensors")
    save_file({"c": torch.zeros(4), "d": torch.zeros(())}, tmp_path / "2.safetensors")
    (tmp_path / weights.INDEX).write_text(index("1.safetensors", "2.safetensors"))
    assert weights.shapes(tmp_path) == {"a": (3, 5), "b": (2,), "c": (4,), "d": ()}
    (tmp_path / "link").symlink_to(tmp_path)
    of = weights.read_header(tmp_path / "1.safetensors")
    assert weights.read_header(tmp_path / "link" / "1.safetensors") is of  # a large header is parsed once


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(("header", "read"), [
    ({"a": ENTRY | {"dtype": "X9"}}, None), ({"a": ENTRY | {"data_offsets": [4, 8]}}, None),
    ({"a": ENTRY | {"shape": [2**62]}}, None), ([], None),
    *(({"b": {"dtype": dtype, "shape": [4], "data_offsets": [0, 4]},
        "a": {"dtype": "BF16", "shape": [0, 4], "data_offsets": [4, 4]}}, {"a": (0, 4), "b": (4,)})
      for dtype in ("BOOL", "F8_E4M3", "F8_E8M0")),
])  # fmt: skip
def test_a_header_that_is_none_of_safetensors_is_named(tmp_path: Path, header: Any, read: Any) -> None:
    text = json.dumps(header).encode()
    (tmp_path / weights.SINGLE).write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    lines = list(map(str, weights.cut_faults(tmp_path)))
    assert weights.shapes(tmp_path) == read and len(lines) == (read is None)
    assert all(weights.SINGLE in line for line in lines)


CODE = [
    # a config, the code that it needs
    ({"model_type": "mine", "auto_map": {"AutoConfig": "configuration_mine.Mine"}}, "configuration_mine.Mine"),
    ({"auto_map": {"AutoModel": "other/repo--modeling.X"}}, "other/repo--modeling.X"),
    ({"model_type": "../qwen3", "auto_map": {"AutoModel": "m.X"}}, "m.X"),
    ({"model_type": "phi3", "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}}, ""),  # the library's own now
    ({"model_type": "qwen3", "auto_map": {}}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("node", "code"), CODE, ids=[str(row[0])[:60] for row in CODE])
def test_code_that_comes_with_a_model(node: dict[str, Any], code: str, tmp_path: Path) -> None:
    assert config.foreign_code(node) == code
    (tmp_path / "config.json").write_text(json.dumps(node))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    found = list(map(str, Pretrained(path=str(tmp_path)).problems()))
    assert found == ([] if not code else [
        f"model.path: {str(tmp_path)!r} needs Python code that comes with it ({code!r});"
        " read it, then set model.trust_remote_code=true to run it"
    ])  # fmt: skip
    assert Pretrained(path=str(tmp_path), trust_remote_code=True).problems() == []


def test_the_folders_own_config_goes_before(tmp_path: Path) -> None:
    node = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 2, "vocab_size": 9, "max_position_embeddings": 77}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(node))
    model = Pretrained(path=str(tmp_path))
    assert model.positions == 77 and model.shape and model.shape.head_dim == 4
    (tmp_path / "config.json").write_text("{")
    assert model.positions is None
    assert Pretrained(path="owner/name").positions is None


# ---- other files of the folder


NAMED = json.dumps([{"name": "default", "template": "{{ messages }}"}, {"name": "tools", "template": ""}])


@pytest.mark.parametrize(("name", "content", "named"), [
    ("chat_template.jinja", b"\xff\xfe{", True), ("chat_template.jinja", b"a" * 17 * 2**20, True),
    ("added_tokens.json", b"[]", True), ("tokenizer_config.json", None, True),  # a link to nothing
    *(("tokenizer_config.json", f'{{"chat_template": {template}}}'.encode(), named) for template, named in (
        ("[[[]]]", True), ("5", True), ('[{"name": "default"}, {"template": "x"}]', True), (NAMED, False),
        ('"{{ messages }}"', False), ("null", False), ('{"default": "x"}', False),
    )),
], ids=lambda value: str(value)[:40])  # fmt: skip
def test_a_file_that_is_no_template_or_no_tokens_is_named(
    tmp_path: Path, name: str, content: bytes | None, named: bool
) -> None:
    if content is None:
        (tmp_path / name).symlink_to("../blobs/5f3c")  # as in a hub's cache that was copied without its blobs
    else:
        (tmp_path / name).write_bytes(content)
    lines = list(map(str, config.faults(tmp_path)))
    assert len(lines) == named and all(line.startswith(f"{tmp_path / name}: ") for line in lines)
    assert content is not None or "cannot be read" in lines[0]


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"r": "x"}, "r is 'x'"), ({"r": -1}, "r is -1"), ({"peft_type": None}, "peft_type is None"),
        ({"target_modules": 5}, "target_modules is 5"), ({"target_modules": r".*\.(q|v)_proj"}, ""),
        ({"target_modules": "all-linear"}, ""), ({}, ""), ({"target_modules": ".*q_proj"}, "leaves out"),
        ({"target_modules": "((a*)*)*b"}, "leaves out"), ({"target_modules": "("}, "a pattern that cannot be used"),
    ],
)  # fmt: skip
def test_what_peft_could_not_use_is_named(tmp_path: Path, entry: dict[str, Any], named: str) -> None:
    launch_model.Model().save(base := tmp_path / "base")
    launch_model.Adapter(str(base), config=entry).save(tmp_path / "adapters")
    lines = list(map(str, adapter.problems(tmp_path / "adapters")))
    assert len(lines) == bool(named) and all(named in line and "adapter_config.json" in line for line in lines)


@pytest.mark.parametrize(("more", "named"), [
    ({"model_type": "a" * 2**20}, "model_type is 'aaa"), ({"dtype": ["float32"]}, "dtype is ['float32']"),
    ({"rope_theta": "x"}, "rope_theta is 'x'"), ({"rope_scaling": [1]}, "rope_scaling is [1]"),
    ({"hidden_size": 2**30}, "hidden_size is 1073741824 in config.json; use a whole number of at most"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope_scaling.factor is 0 in config.json; use a number"),
    ({"num_experts": 4, "num_experts_per_tok": 9}, "num_experts_per_tok is 9 in config.json, and num_experts 4; use"),
    ({"num_attention_heads": 0}, "num_attention_heads is 0 in config.json; use a whole number of at most"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan in config.json; use about 1e-6"),
    ({"dtype": "bfloat16", "rope_theta": 10000, "rope_scaling": None,  # as publishers have them
      "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}, ""),
])  # fmt: skip
def test_an_entry_that_no_model_has_is_named(more: dict[str, Any], named: str) -> None:
    lines = list(map(str, config.content_faults({"model_type": "llama", **more})))
    assert len(lines) == bool(named)
    for line in lines:
        assert line.startswith(named) and "in config.json" in line and "; use" in line and len(line) < 300
