"""Models on disk are merged and loaded again by transformers: numbers, layout, tokenizer, and where it came from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
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
Ulps = Callable[[Tensor, Tensor], int]
OPTIONS = ("weights", "normalize", "t", "density", "scale")


def quiet(doing: str, done: int, total: int) -> None:
    pass


def merged(method: str, models: list[Path], out: Path, base: Path | None = None, **more: Any) -> MergeResult:
    options = {name: more.pop(name) for name in OPTIONS if name in more}
    asked = MergeRequest(method, tuple(map(str, models)), out, options, str(base) if base else None, **more)
    return merge(asked, quiet)


def tensors(folder: Path) -> dict[str, Tensor]:
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(("method", "dtype"), [("slerp", "float32"), ("ties", "bfloat16"), ("linear", "float16")])
def test_the_result_is_the_formula_to_one_ulp(method: str, dtype: str, model: Make, tmp_path: Path, ulps: Ulps) -> None:
    base, x, y = (model(name, seed, dtype=dtype, shard="20KB") for seed, name in enumerate(("base", "x", "y")))
    merged(method, [x, y], tmp_path / "out", base if method == "ties" else None)
    found, of_base, of_x, of_y = (tensors(folder) for folder in (tmp_path / "out", base, x, y))
    assert found.keys() == of_x.keys()
    for name, value in found.items():
        models = [of_x[name].double(), of_y[name].double()]
        expected = METHODS[method]().mix(models, of_base[name].double()).to(getattr(torch, dtype))
        assert value.dtype == expected.dtype and ulps(value, expected) <= 1, name


@pytest.mark.parametrize(
    "more", [{"kind": "llama"}, {"tie_word_embeddings": True, "shard": "20KB"}], ids=["llama", "tied, sharded"],
)  # fmt: skip
def test_transformers_loads_it_and_computes_with_the_merged_weights(more: Any, model: Make, tmp_path: Path) -> None:
    x, y = model("x", 1, **more), model("y", 2, **more)
    merged("linear", [x, y], tmp_path / "out", weights=(1.0, 3.0), shard_bytes=30_000)
    theirs, one, other = (AutoModelForCausalLM.from_pretrained(at) for at in (tmp_path / "out", x, y))
    with torch.no_grad():
        for weight, second, found in zip(*(m.parameters() for m in (one, other, theirs)), strict=True):
            weight.copy_((0.25 * weight.double() + 0.75 * second.double()).float())
            assert torch.equal(weight, found)
        ids = torch.arange(3, 19).reshape(2, 8)
        assert torch.equal(theirs(input_ids=ids).logits, one(input_ids=ids).logits)
    tokens = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokens("abc 12").input_ids == AutoTokenizer.from_pretrained(x)("abc 12").input_ids


def test_files_are_no_larger_than_asked_and_the_index_is_right(model: Make, tmp_path: Path) -> None:
    made = merged("linear", [model("x", 1), model("y", 2)], tmp_path / "out", shard_bytes=20_000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    held = {file: load_file(tmp_path / "out" / file) for file in made.files}
    sizes = [sum(tensor.nbytes for tensor in part.values()) for part in held.values()]
    count = len(held)
    assert count > 2 and sorted(held) == [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
    assert index["weight_map"] == {name: file for file, part in held.items() for name in part}
    assert index["metadata"]["total_size"] == made.bytes == sum(sizes)
    assert max(sizes) <= 20_000


def test_whole_numbers_are_kept_where_all_agree(plain: Make, tmp_path: Path) -> None:
    counted = {"w": torch.ones(3), "n": torch.tensor([3, 1 << 40]), "b": torch.tensor([True, False])}
    x, y = plain("x", counted), plain("y", {**counted, "w": torch.zeros(3)})
    merged("linear", [x, y], tmp_path / "out", dtype="float16")
    found = tensors(tmp_path / "out")
    assert torch.equal(found["n"], counted["n"]) and torch.equal(found["b"], counted["b"])
    assert torch.equal(found["w"], torch.full((3,), 0.5, dtype=torch.float16))


def test_the_record_says_where_it_comes_from(model: Make, tmp_path: Path) -> None:
    base, x = model("base", 0), model("x", 1, shard="20KB")
    merged("ties", [x], tmp_path / "out", base, density=0.5)
    record = json.loads((tmp_path / "out" / "merge.json").read_text())
    assert (record["method"], record["parameters"]) == ("ties", {"density": 0.5, "scale": 1.0})
    assert [(one["is"], one["path"]) for one in record["inputs"]] == [("model 1", str(x)), ("base", str(base))]
    assert record["inputs"][0]["sha256"] == {file.name: sha256(file) for file in x.glob("*.safetensors")}
    assert record["sha256"] == {file.name: sha256(file) for file in (tmp_path / "out").glob("*.safetensors")}


def test_progress_is_told_by_bytes_to_the_last_one(model: Make, tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    x, y = model("x", 1), model("y", 2)
    made = merge(MergeRequest("linear", (str(x), str(y)), tmp_path / "out"), lambda *one: heard.append(one))
    done = [done for _, done, _ in heard]
    assert list(dict.fromkeys(doing for doing, _, _ in heard)) == ["writing", "reading back"]
    assert done == sorted(done) and done[-1] == heard[-1][2] == 2 * made.bytes


# ---- runs and checkpoints


def checkpoint(source: Path, run: Path, step: int) -> Path:
    def fill(folder: Path) -> None:
        shutil.copytree(source, folder / "policy")

    return write(run / "checkpoints", step, fill)


def test_a_run_stands_for_its_newest_checkpoint_that_verifies(model: Make, tmp_path: Path) -> None:
    x, y, run = model("x", 1), model("y", 2), tmp_path / "run"
    older, newest = checkpoint(x, run, 2), checkpoint(y, run, 4)

    def used(out: str) -> list[str]:
        record = json.loads((tmp_path / out / "merge.json").read_text())
        return [one["path"] for one in record["inputs"]]

    merged("linear", [x, run], tmp_path / "by run")
    merged("linear", [older, newest], tmp_path / "by checkpoint")
    assert used("by run") == [str(x), str(newest / "policy")]
    assert used("by checkpoint") == [str(older / "policy"), str(newest / "policy")]
    weights = newest / "policy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    merged("linear", [y, run], tmp_path / "by older")
    assert used("by older") == [str(y), str(older / "policy")]
    with pytest.raises(Problems) as found:
        merged("linear", [x, newest], tmp_path / "out")
    assert found.value.lines == [
        f"{newest}: does not verify; use another checkpoint",
        "step_000004/policy/model.safetensors: its bytes changed since it was written (sha256 differs)",
    ]


# ---- nothing half done

VICTIM = """
import os, signal, sys
from pathlib import Path
from launcher.tools.merge.merge import MergeRequest, merge

def die(doing, done, total):
    if done >= total * float(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
merge(MergeRequest("linear", (sys.argv[1], sys.argv[2]), Path(sys.argv[3])), die)
"""


def test_a_kill_leaves_nothing_under_the_name_and_the_next_one_tidies_up(model: Make, tmp_path: Path) -> None:
    x, y, out = model("x", 1), model("y", 2), tmp_path / "made" / "out"
    words = [sys.executable, "-c", VICTIM, *map(str, (x, y, out, 0.3))]
    assert subprocess.run(words, check=False).returncode == -9
    assert [path.name for path in out.parent.iterdir()] == [".out.unfinished"]
    merged("linear", [x, y], out)
    assert [path.name for path in out.parent.iterdir()] == ["out"] and (out / "merge.json").is_file()


def test_an_error_on_the_way_leaves_nothing(model: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = model("x", 1), model("y", 2)
    before = sorted(tmp_path.iterdir())

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        merged("linear", [x, y], tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before
