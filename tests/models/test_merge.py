"""Models on disk are merged and loaded again by transformers: numbers, layout, tokenizer, and where it came from."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from launcher.core.checkpoints import write
from launcher.core.problems import Problems
from launcher.tools.merge.merge import MergeRequest, MergeResult, merge
from launcher.tools.merge.methods import METHODS

Make = Callable[..., Path]
OPTIONS = ("weights", "t", "density", "scale")


def quiet(doing: str, done: int, total: int) -> None:
    pass


def merged(method: str, models: list[Path], out: Path, base: Path | None = None, **more: Any) -> MergeResult:
    options = {name: more.pop(name) for name in OPTIONS if name in more}
    asked = MergeRequest(method, tuple(map(str, models)), out, options, str(base) if base else None, **more)
    return merge(asked, quiet)


def tensors(folder: Path) -> dict[str, Tensor]:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


@pytest.mark.parametrize(("method", "dtype"), [("slerp", "float32"), ("ties", "bfloat16")])
def test_the_result_is_the_formula_to_one_ulp(method: str, dtype: str, model: Make, tmp_path: Path) -> None:
    base, x, y = (model(name, seed, dtype=dtype, shard="20KB") for seed, name in enumerate(("base", "x", "y")))
    merged(method, [x, y], tmp_path / "out", base if method == "ties" else None)
    found, of_base, of_x, of_y = (tensors(folder) for folder in (tmp_path / "out", base, x, y))
    assert found.keys() == of_x.keys()
    for name, value in found.items():
        models = [of_x[name].double(), of_y[name].double()]
        expected = METHODS[method]().mix(models, of_base[name].double()).to(getattr(torch, dtype))
        assert value.dtype == expected.dtype and torch.equal(torch.nextafter(expected, value), value), name


def test_files_have_a_largest_size_and_transformers_loads_the_merged_weights(
    model: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.tools.merge.merge.SHARD", "20KB")
    x, y = (model(name, seed, tie_word_embeddings=True, shard="20KB") for seed, name in enumerate("xy"))
    request, heard = MergeRequest("linear", (str(x), str(y)), tmp_path / "out", {"weights": (1.0, 3.0)}), list[Any]()
    made = merge(request, lambda *one: heard.append(one))
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    held = {file: load_file(tmp_path / "out" / file) for file in made.files}
    sizes = [sum(tensor.nbytes for tensor in part.values()) for part in held.values()]
    assert len(held) > 2 and index["weight_map"] == {name: file for file, part in held.items() for name in part}
    assert made.bytes == sum(sizes) and max(sizes) <= 20_000
    assert len(heard) == len(index["weight_map"]) and heard[-1] == ("mixing", made.bytes, made.bytes)
    theirs, one, other = (AutoModelForCausalLM.from_pretrained(at) for at in (tmp_path / "out", x, y))
    with torch.no_grad():
        for weight, second, found in zip(*(m.parameters() for m in (one, other, theirs)), strict=True):
            weight.copy_((0.25 * weight.double() + 0.75 * second.double()).float())
            assert torch.equal(weight, found)
        ids = torch.arange(3, 19).reshape(2, 8)
        assert torch.equal(theirs(input_ids=ids).logits, one(input_ids=ids).logits)
    tokens = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokens("abc 12").input_ids == AutoTokenizer.from_pretrained(x)("abc 12").input_ids


def test_the_result_has_the_number_format_of_the_first_and_whole_numbers_that_all_agree_on(
    plain: Make, tmp_path: Path
) -> None:
    whole = {"n": torch.tensor([3, 1 << 40]), "b": torch.tensor([True, False])}
    x, y = plain("x", {**whole, "w": torch.ones(3)}), plain("y", {**whole, "w": torch.zeros(3).bfloat16()})
    for models, dtype in (([x, y], torch.float32), ([y, x], torch.bfloat16)):
        merged("linear", models, tmp_path / str(dtype))
        found = tensors(tmp_path / str(dtype))
        assert torch.equal(found["n"], whole["n"]) and torch.equal(found["b"], whole["b"])
        assert found["w"].dtype == dtype and torch.equal(found["w"], torch.full((3,), 0.5, dtype=dtype))


# ---- runs and checkpoints


def checkpoint(source: Path, run: Path, step: int) -> Path:
    def fill(folder: Path) -> None:
        shutil.copytree(source, folder / "policy")

    return write(run / "checkpoints", step, fill)


def test_a_run_stands_for_its_newest_checkpoint_that_verifies(model: Make, tmp_path: Path) -> None:
    x, y, run = model("x", 1), model("y", 2), tmp_path / "run"
    older, newest = checkpoint(x, run, 2), checkpoint(y, run, 4)

    by_folder = merged("linear", [x, y], tmp_path / "by folder")
    by_run = merged("linear", [x, run], tmp_path / "by run")
    by_checkpoint = merged("linear", [older, newest], tmp_path / "by checkpoint")
    assert by_run.files == by_checkpoint.files == by_folder.files
    weights = newest / "policy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    assert merged("linear", [y, run], tmp_path / "by older").files == by_folder.files
    with pytest.raises(Problems) as found:
        merged("linear", [x, newest], tmp_path / "out")
    assert found.value.lines == [
        f"{newest}: does not verify; use another checkpoint",
        "step_000004/policy/model.safetensors: its bytes changed since it was written (sha256 differs)",
    ]


# ---- nothing half done


def test_an_error_on_the_way_leaves_nothing(model: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = model("x", 1), model("y", 2)
    before = sorted(tmp_path.iterdir())

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        merged("linear", [x, y], tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


# ---- what cannot be merged is refused with everything that is wrong in one go

KIND = "; use models of one kind"
FINITE = "use models whose numbers are finite, in float32 where a sum is too large"


def refused(method: str, models: list[Path], out: Path, **more: Any) -> list[str]:
    before = sorted(out.parent.iterdir())
    with pytest.raises(Problems) as found:
        merge(MergeRequest(method, tuple(map(str, models)), out, **more), quiet)
    assert sorted(out.parent.iterdir()) == before
    return found.value.lines


@pytest.fixture
def w() -> dict[str, torch.Tensor]:
    return {"a": torch.ones(4, 2), "b": torch.zeros(3)}


def test_all_that_is_wrong_is_said_at_once(plain: Make, w: Any, tmp_path: Path) -> None:
    x = plain("x", w, vocab_size=4)
    y = plain("y", {"a": torch.ones(4, 3), "b": torch.zeros(3).half(), "c": torch.ones(1)}, vocab_size=5)
    z = plain("z", {"b": torch.zeros(3)}, vocab_size=4)
    models, options = [x, y, z, tmp_path / "none", x], {"t": 0.5, "weights": (1.0,)}
    assert refused("linear", models, x, options=options) == [
        "--t: linear takes none; leave it out",
        "--weights: got 1 for 5 models; expected one for each",
        f"{tmp_path}/none: no such folder; use a model's, a checkpoint's or a run's",
        f"{x}: is given twice; give each model once",
        f"{y}: vocab_size is 5 where {x} has 4{KIND}",
        f"{y}: has 'c', which {x} lacks{KIND}",
        f"{y}: other shapes than {x}'s: 'a [4, 3] for [4, 2]'{KIND}",
        f"{z}: lacks 'a', which {x} has{KIND}",
        f"--out: {x} overlaps with {x}; use another folder",
    ]


def counted(*numbers: int) -> dict[str, Tensor]:
    return {"n": torch.tensor(numbers)}


def large(size: float) -> dict[str, Tensor]:
    return {"b": torch.full((3,), size)}


@pytest.mark.parametrize(("method", "changes", "more", "line"), [
    ("linera", [{}, {}], {}, "--method: no method 'linera'; did you mean linear?"),
    ("ties", [{}, {}], {}, "--base: ties needs the model that the others came from; give its folder"),
    ("linear", [{}, {}], {"base": "x"}, "--base: linear looks at none; leave it out"),
    ("lora", [{}, {}], {}, "--method lora: adds one adapter, got 2; merge one after the other"),
    ("lora", [{}], {"options": {"scale": 2.0}}, "--scale: lora takes none; leave it out"),
    ("linear", [{}, {"b": torch.zeros(3).long()}], {}, "{1}: other formats than {0}'s: 'b I64 for F32'" + KIND),
    ("linear", [{}, large(math.nan)], {}, "{1}: b: a number is not finite in F32; " + FINITE),
    ("linear", [{}, large(math.inf)], {}, "{1}: b: a number is not finite in F32; " + FINITE),
    ("linear", [counted(1, 2), counted(1, 3)], {},
     "{1}: n (I64) differs from {0}'s; whole numbers cannot be mixed, so use equal ones"),
])  # fmt: skip
def test_what_cannot_be_mixed(
    method: str, changes: list[Any], more: Any, line: str, plain: Make, w: Any, tmp_path: Path
) -> None:
    models = [plain(f"m{number}", {**w, **change}) for number, change in enumerate(changes)]
    lines = refused(method, models, tmp_path / "out", **more)
    assert line.format(*models) in lines and (len(lines) == 1 or line.startswith("--"))


def test_tokenizers_that_know_other_tokens(model: Make, tmp_path: Path) -> None:
    x, y = model("x", 1), model("y", 2)
    text = json.loads((y / "tokenizer.json").read_text())
    text["truncation"] = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    (y / "tokenizer.json").write_text(json.dumps(text))
    merged("linear", [x, y], tmp_path / "the same tokens, cut elsewhere")
    known = text["model"]["vocab"]
    known["a"], known["b"] = known["b"], known["a"]
    (y / "tokenizer.json").write_text(json.dumps(text))
    assert refused("linear", [x, y], tmp_path / "out") == [f"{y}: its tokenizer knows other tokens than {x}'s{KIND}"]


def test_folders_that_no_loader_would_take(plain: Make, w: Any, tmp_path: Path) -> None:
    """`models.weights` has the other faults."""
    x, y, z = plain("x", w), plain("y", w), plain("z", w)
    (y / "model.safetensors").rename(y / "pytorch_model.bin")
    header = b'{"a": {"dtype": "F8_E4M3", "shape": [12], "data_offsets": [0, 12]}}'
    (z / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
    pickle, unknown = refused("linear", [x, y, z], tmp_path / "out")
    assert pickle.startswith(f"{y}: holds weights as pickle only ('pytorch_model.bin')")
    assert unknown.startswith(f"{z}/model.safetensors: 'a' is F8_E4M3; expected one of ")
    (z / "config.json").write_text("[]")
    assert "is not a JSON object" in refused("linear", [x, z], tmp_path / "out")[0]
    quantized = [plain(f"quantized {n}", w, quantization_config={"bits": 4}) for n in (1, 2)]
    lines = [f"{at}: is quantized; use the model before quantization" for at in quantized]
    assert refused("linear", quantized, tmp_path / "out") == lines


def test_places_that_will_not_do(plain: Make, w: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, full = plain("x", w), plain("y", w), tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("kept")
    assert refused("linear", [x, y], x / "inside") == [f"--out: {x}/inside overlaps with {x}; use another folder"]
    assert refused("linear", [x, y], tmp_path) == [f"--out: {tmp_path} overlaps with {x}; use another folder"]
    assert refused("linear", [x, y], full) == [f"--out: {full} is there already; use a new folder"]
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    assert refused("linear", [x, y], tmp_path / "out") == [
        f"--out: {tmp_path} has 1.0 MB free, and 1.0 MB are needed; free some space or use another disk"
    ]
    monkeypatch.undo()
    (tmp_path / "empty").mkdir()
    assert merged("linear", [x, y], tmp_path / "empty").tensors == 2  # an empty one is as good as a new one
