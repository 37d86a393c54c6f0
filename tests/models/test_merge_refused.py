"""What cannot be merged is refused with everything that is wrong in one go, and nothing is left."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.core.problems import Problems
from launcher.tools.merge.merge import MergeRequest, MergeResult, merge

Make = Callable[..., Path]
KIND = "; use models of one kind"


def linear(models: list[Path], out: Path, **more: Any) -> MergeResult:
    return merge(MergeRequest("linear", tuple(map(str, models)), out, **more), lambda *_: None)


def refused(method: str, models: list[Path], out: Path, **more: Any) -> list[str]:
    was_there = out.exists()
    with pytest.raises(Problems) as found:
        merge(MergeRequest(method, tuple(map(str, models)), out, **more), lambda *_: None)
    assert out.exists() == was_there
    assert not list(out.parent.glob(".*.unfinished"))
    return found.value.lines


@pytest.fixture
def w() -> dict[str, torch.Tensor]:
    return {"a": torch.ones(4, 2), "b": torch.zeros(3)}


def test_all_that_is_wrong_is_said_at_once(plain: Make, w: Any, tmp_path: Path) -> None:
    x = plain("x", w, vocab_size=4)
    y = plain("y", {"a": torch.ones(4, 3), "b": torch.zeros(3).half(), "c": torch.ones(1)}, vocab_size=5)
    z = plain("z", {"b": torch.zeros(3)}, vocab_size=4)
    models, options = [x, y, z, tmp_path / "none", x], {"t": 0.5, "weights": (1.0,)}
    assert refused("linear", models, x, options=options, dtype="f32") == [
        "--t: linear takes none; leave it out",
        "--weights: got 1 for 5 models; expected one for each",
        f"{tmp_path}/none: no such folder; use a model's, a checkpoint's or a run's",
        f"{x}: is given twice; give each model once",
        f"{y}: vocab_size is 5 where {x} has 4{KIND}",
        f"{y}: has 'c', which {x} lacks{KIND}",
        f"{y}: other shapes than {x}'s: 'a [4, 3] for [4, 2]'{KIND}",
        f"{z}: lacks 'a', which {x} has{KIND}",
        "--dtype: got 'f32'; did you mean float32?",
        f"--out: {x} is one with {x}; use another folder",
    ]


@pytest.mark.parametrize(
    ("method", "count", "more", "line"),
    [
        ("linera", 2, {}, "--method: no method 'linera'; did you mean linear?"),
        ("slerp", 3, {}, "--method slerp: goes from one model to one other, got 3; expected 2"),
        ("ties", 2, {}, "--base: ties needs the model that the others came from; give its folder"),
        ("ties", 2, {"options": {"density": 2.0}}, "--density: got 2.0; expected above 0 and at most 1"),
        ("linear", 2, {"base": "x"}, "--base: linear looks at none; leave it out"),
        ("linear", 2, {"shard_bytes": 0}, "--max-shard-size: got 0 bytes; use more"),
        ("lora", 2, {}, "--method lora: adds one adapter, got 2; merge one after the other"),
        ("lora", 1, {"options": {"scale": 2.0}}, "--scale: lora takes none; leave it out"),
    ],
)
def test_words_that_make_no_sense(
    method: str, count: int, more: Any, line: str, plain: Make, w: Any, tmp_path: Path
) -> None:
    models = [plain(f"m{n}", w) for n in range(count)]
    assert line in refused(method, models, tmp_path / "out", **more)


def test_formats_that_differ_need_a_word(plain: Make, w: Any, tmp_path: Path) -> None:
    x, y = plain("x", w), plain("y", {name: value.bfloat16() for name, value in w.items()})
    assert refused("linear", [x, y], tmp_path / "out") == [
        f"{y}: other formats than {x}'s: 'a BF16 for F32', 'b BF16 for F32'; use --dtype float32"
    ]
    assert linear([x, y], tmp_path / "out", dtype="float32").tensors == 2


def test_tokenizers_that_know_other_tokens(model: Make, tmp_path: Path) -> None:
    x, y = model("x", 1), model("y", 2)
    text = json.loads((y / "tokenizer.json").read_text())
    text["truncation"] = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    (y / "tokenizer.json").write_text(json.dumps(text))
    linear([x, y], tmp_path / "the same tokens, cut elsewhere")
    known = text["model"]["vocab"]
    known["a"], known["b"] = known["b"], known["a"]
    (y / "tokenizer.json").write_text(json.dumps(text))
    assert refused("linear", [x, y], tmp_path / "out") == [f"{y}: its tokenizer knows other tokens than {x}'s{KIND}"]


def test_neighbours_may_be_mixed_but_are_told(model: Make, tmp_path: Path) -> None:
    x, y = model("x", 1), model("y", 2)
    config = json.loads((y / "config.json").read_text())
    (y / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    made = linear([x, y], tmp_path / "out")
    assert made.notes == (f"{y}: rms_norm_eps is 1e-05; the result has {x}'s, 1e-06",)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_tensor_that_is_not_finite_is_named(bad: float, plain: Make, w: Any, tmp_path: Path) -> None:
    x, y = plain("x", w), plain("y", {**w, "b": torch.tensor([0.0, bad, 0.0])})
    assert refused("linear", [x, y], tmp_path / "out") == [f"{y}: 'b' not finite; use a model whose numbers are"]


def test_a_result_that_is_too_large_for_its_format(plain: Make, tmp_path: Path) -> None:
    x, y = plain("x", {"a": torch.full((3,), 6e4)}), plain("y", {"a": torch.full((3,), 7.9e4)})
    assert refused("linear", [x, y], tmp_path / "out", dtype="float16") == [
        "a: a number is too large for float16; use --dtype float32"
    ]


def test_whole_numbers_that_differ_cannot_be_mixed(plain: Make, w: Any, tmp_path: Path) -> None:
    x, y = plain("x", {**w, "n": torch.tensor([1, 2])}), plain("y", {**w, "n": torch.tensor([1, 3])})
    (line,) = refused("linear", [x, y], tmp_path / "out")
    assert line == f"{y}: n (I64) differs from {x}'s; whole numbers cannot be mixed, so use equal ones"


def test_quantized_models(plain: Make, w: Any, tmp_path: Path) -> None:
    x, y = (plain(name, w, quantization_config={"bits": 4}) for name in "xy")
    lines = [f"{at}: is quantized; use the model before quantization" for at in (x, y)]
    assert refused("linear", [x, y], tmp_path / "out") == lines


# ---- folders that are not what they should be


def test_pickles_are_refused_and_never_opened(plain: Make, w: Any, tmp_path: Path) -> None:
    x, y = plain("x", w), plain("y", w)
    (y / "model.safetensors").rename(y / "pytorch_model.bin")
    assert refused("linear", [x, y], tmp_path / "out") == [
        f"{y}: holds weights as pickle only ('pytorch_model.bin'), which can run code; use safetensors"
    ]


def indexed(folder: Path, text: object) -> Path:
    """The same tensors in a file of another name, and an index that says so."""
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    body = text if isinstance(text, bytes) else json.dumps({"weight_map": text}).encode()
    (folder / "model.safetensors.index.json").write_bytes(body)
    return folder


@pytest.mark.parametrize(
    "name",
    ["../x/model.safetensors", "/etc/x.safetensors", "a/b.safetensors", "a.bin"],
)  # fmt: skip
def test_an_index_that_leads_elsewhere(name: str, plain: Make, w: Any, tmp_path: Path) -> None:
    x, y = plain("x", w), indexed(plain("y", w), {"a": "part.safetensors", "b": name})
    (found,) = refused("linear", [x, y], tmp_path / "out")
    assert found.startswith(f"{y}/model.safetensors.index.json: {name!r}: ")


PART = "part.safetensors"


def test_an_index_without_its_files(plain: Make, w: Any, tmp_path: Path) -> None:
    x, y, z = plain("x", w), indexed(plain("y", w), b"{}"), indexed(plain("z", w), {"a": PART, "b": "gone.safetensors"})
    (unread, missing) = refused("linear", [x, y, z], tmp_path / "out")
    assert unread.startswith(f"{y}/model.safetensors.index.json: names no files in its weight_map; ")
    assert missing.startswith(f"{z}/model.safetensors.index.json: 'gone.safetensors': is named by the index and")


LIES: dict[str, dict[str, object]] = {
    "over another": {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                     "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}},
    "a shape of another size": {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 12]}},
    "an unknown format": {"a": {"dtype": "F31", "shape": [3], "data_offsets": [0, 12]}},
    "a format that cannot be computed with": {"a": {"dtype": "F8_E4M3", "shape": [12], "data_offsets": [0, 12]}},
    "longer": {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}},
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_is_not_what_it_says(lie: str, plain: Make, w: Any, tmp_path: Path) -> None:
    x, y = plain("x", w), plain("y", w)
    text = json.dumps(LIES[lie]).encode()
    (y / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
    (line,) = refused("linear", [x, y], tmp_path / "out")
    assert line.startswith(f"{y}/model.safetensors: ")


# ---- where it goes


def test_places_that_will_not_do(plain: Make, w: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, full = plain("x", w), plain("y", w), tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("kept")
    assert refused("linear", [x, y], x / "inside") == [f"--out: {x}/inside is within {x}; use another folder"]
    assert refused("linear", [x, y], tmp_path) == [f"--out: {tmp_path} holds {x}; use another folder"]
    assert refused("linear", [x, y], full) == [f"--out: {full} is there already; use a new folder"]
    assert refused("linear", [x, y], full / "mine" / "out") == [f"--out: {full}/mine is a file; use a folder"]
    assert (full / "mine").read_text() == "kept"
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    assert refused("linear", [x, y], tmp_path / "out") == [
        f"--out: {tmp_path} has 1.0 MB free, and 1.0 MB are needed; free some space or use another disk"
    ]
    monkeypatch.undo()
    (tmp_path / "empty").mkdir()
    assert linear([x, y], tmp_path / "empty").tensors == 2  # an empty one is as good as a new one


def test_of_two_that_make_the_same_folder_the_second_is_refused(plain: Make, w: Any, tmp_path: Path) -> None:
    x, y = plain("x", w), plain("y", w)
    draft = tmp_path / ".out.unfinished"
    draft.mkdir()
    (draft / "theirs").write_text("kept")
    handle = os.open(draft, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(Problems, match="is being written by another process"):
        linear([x, y], tmp_path / "out")
    assert (draft / "theirs").read_text() == "kept"
    os.close(handle)


def test_a_small_disk(plain: Make, tmp_path: Path, small_disk: Callable[[int, Path], Path]) -> None:
    x, y = (plain(name, {"a": torch.ones(1 << 20)}) for name in "xy")
    disk = small_disk(3000, tmp_path / "disk")
    (line,) = refused("linear", [x, y], disk / "out")
    assert line.startswith(f"--out: {disk} has 3.1 MB free, and 5.2 MB are needed")
