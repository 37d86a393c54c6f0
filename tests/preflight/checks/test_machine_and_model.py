"""What a plan says of the machine, the disk, the model's folder and earlier runs, with real ones."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from launcher.config.resolve import resolve
from launcher.core import machine
from launcher.core.check_result import CheckResult
from launcher.core.events import Ended, Started, Step, to_line
from launcher.core.machine import Gpu, Gpus
from launcher.models import dry_load
from launcher.preflight.checks import disk, hardware, history, model, packages
from launcher.preflight.checks.context import Context, count_steps
from launcher.spec.run import RunSpec
from launcher.spec.stored import to_yaml

SFT = ["algorithm=sft", "model=tiny", "data=reverse"]
EIGHT = tuple(Gpu(number, "NVIDIA H100 80GB HBM3", 80 * 2**30, 79 * 2**30) for number in range(8))


def lines(results: Iterator[CheckResult] | list[CheckResult]) -> list[str]:
    return [f"{result.level} {result.line}" for result in results]


def run_of(*words: str) -> RunSpec:
    named = {word.partition("=")[0] for word in words}
    return resolve([*(word for word in SFT if word.partition("=")[0] not in named), *words])


@pytest.mark.parametrize(
    ("gpus", "here", "line"),
    [
        (Gpus("570.1", "12.8", EIGHT), True, "OK hardware: 8 of 8 GPUs here (NVIDIA H100 80GB HBM3)"),
        # people plan on a laptop for a cluster
        (Gpus(), False, "WARN hardware.device: h100 needs CUDA, and this machine has no GPU;"
         " use a machine with GPUs, or hardware=cpu and no other hardware setting"),
        (Gpus(), True, "FAIL hardware.device: h100 needs CUDA, and this machine has no GPU;"
         " use a machine with GPUs, or hardware=cpu and no other hardware setting"),
        (Gpus("570.1", "12.8", EIGHT[:2]), True,
         "FAIL hardware.n_gpus_per_node: got 8, and this machine has 2 GPUs; use 2"),
        (Gpus(trouble="Driver/library version mismatch"), True,
         "FAIL hardware: the GPUs' driver does not answer: Driver/library version mismatch;"
         " run nvidia-smi, and restart this machine after an update of the driver"),
    ],
)  # fmt: skip
def test_gpus_that_are_asked_for(gpus: Gpus, here: bool, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "query_gpus", lambda: gpus)
    assert lines(hardware.check(Context(run_of("hardware=h100x8"), here))) == [line]


@pytest.mark.parametrize(
    ("asked", "processes", "threads"), [("3", 2, 3), ("3,1", 2, 3), ("many", 2, 4), ("0", 2, 4), ("", 16, 1)]
)
def test_threads_are_those_of_the_environment(
    asked: str, processes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr(machine, "cpu_count", lambda: 8)
    assert machine.threads_of_a_process(processes) == threads


def missing(run: RunSpec) -> list[str]:
    """What the run needs, other than hardware, and is not there."""
    return lines([result for result in hardware.check(Context(run, here=True)) if result.subject != "hardware"])


def test_a_port_that_somebody_has_taken() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        two = run_of(f"cluster.master_port={port}", "hardware.nproc_per_node=2")
        (line,) = missing(two)
        assert line.startswith(f"FAIL cluster.master_port: port {port}: address already in use; use ")
        assert line.endswith(" or null")
        assert missing(run_of(f"cluster.master_port={port}")) == []  # one process meets nobody
    assert missing(two) == []


# ---- disk


def of_disk(run: RunSpec) -> list[str]:
    context = Context(run, here=True)
    context.steps = count_steps(run, 4000, 100)
    return lines(disk.check(context))


@pytest.mark.parametrize(
    ("free", "words", "line"),
    [
        # 112,960 weights of 4 bytes, with two moments each: 1.36 MB
        (10_000_000, ["trainer.save_freq=1"], "OK disk: 5 checkpoints of 1.4 MB at a time, 10.0 MB free"),
        (6_500_000, ["trainer.save_freq=1"], "FAIL disk: 5 checkpoints of 1.4 MB at a time, 6.5 MB free;"
         " use trainer.keep_last=2 or trainer.save_freq=-1 or a trainer.run_root on a larger disk"),
        (6_500_000, ["trainer.save_freq=1", "trainer.keep_last=2"],
         "OK disk: 4 checkpoints of 1.4 MB at a time, 6.5 MB free"),
        (1_000_000, [], "FAIL disk: 1 checkpoint of 1.4 MB at a time, 1.0 MB free;"
         " use a trainer.run_root on a larger disk"),
        # adapters alone: (64 + 64) x 8 for each of four and (64 + 192) x 8 for each of three matrices, two layers
        (1_000_000, ["model.lora_rank=8"], "OK disk: 1 checkpoint of 0.2 MB at a time, 1.0 MB free"),
    ],
)  # fmt: skip
def test_checkpoints_against_the_disk(free: int, words: list[str], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_disk_bytes", lambda path: free)
    assert of_disk(run_of(*words)) == [line]


# ---- the model's folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a family that transformers does not have, whose weights fit all the same."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "strange", "vocab_size": 3}))
    monkeypatch.setattr(dry_load, "_in_a_process", lambda asked: {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    weight = np.ones((2, 2), np.float32)
    save_file({"layers.0.q_proj.weight": weight, "layers.0.wo.weight": weight}, path / "model.safetensors")
    (path / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 2, "content": "<eos>"}]})
    )
    return path


def of_model(folder: Path, *words: str) -> list[str]:
    return lines(model.check(Context(run_of("model=hf", f"model.path={folder}", *words), here=True)))


FIX = "use all-linear, or some of q_proj, wo"
TIED = "is of one matrix that is embedding and output layer (tied), so adapters of it cannot be merged; leave it out of"
WEIGHT = np.ones((3, 2), np.float32)
TENSORS = {"model.embed_tokens.weight": WEIGHT, "model.layers.0.q_proj.weight": WEIGHT[:2]}


@pytest.mark.parametrize(("tensors", "layers", "refused"), [
    # as PEFT does, names are compared with the last part of a layer's, one regular expression with the whole
    ({}, "[q_proj,query]", f"the model has no layer query; {FIX}"),
    ({}, "[q_proj,wo]", ""), ({}, r"['.*(q_proj|wo)']", ""), ({}, r"['.*\.q_proj']", ""),
    ({}, "['(q|k)_proj']", f"(q|k)_proj is the whole name of no layer, such as layers.0.q_proj; {FIX}"),
    ({}, "['(q_proj']", f"(q_proj is no regular expression: missing ), unterminated subpattern at position 0; {FIX}"),
    (TENSORS, "[lm_head]", f"lm_head {TIED} target_modules"),
    (TENSORS, r"['.*(embed_tokens|q_proj)']", f"model.embed_tokens {TIED} target_modules"),
    (TENSORS, "[q_proj]", ""), (TENSORS, "all-linear", ""),
    ({**TENSORS, "lm_head.weight": WEIGHT}, "[embed_tokens,lm_head]", ""),
])  # fmt: skip
def test_adapters_for_layers_of_a_folder(folder: Path, tensors: Any, layers: str, refused: str) -> None:
    if tensors:
        save_file(tensors, folder / "model.safetensors")
    found = of_model(folder, "model.lora_rank=4", f"model.target_modules={layers}")
    assert found[0] == (f"FAIL model.target_modules: {refused}" if refused else "OK model: model")


# ---- time


def test_an_earlier_run_tells_how_long_it_takes(tmp_path: Path) -> None:
    root = f"trainer.run_root={tmp_path}"
    assert history.earlier(run_of(root)) is None
    old = tmp_path / "p" / "r"
    old.mkdir(parents=True)
    (old / "spec.yaml").write_text(to_yaml(run_of(root, "optim.lr=1e-3")))
    steps = [Step(step=step, metrics={}, at=100.0 + 2 * step) for step in range(1, 5)]
    told = [Started(run="p/r", algorithm="SFT", processes=1, at=99.0), *steps, Ended(how="finished", at=120.0)]
    (old / "events.jsonl").write_text("".join(to_line(event) + "\n" for event in told))
    found = history.earlier(run_of(root))
    assert found == ("p/r", 2.0)
    assert history.earlier(run_of(root, "data.train_batch_size=8")) is None  # a step of it is another


def test_a_module_that_takes_the_place_of_a_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizers.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tokenizers", raising=False)
    found = lines(packages.check(Context(run_of(), here=True)))
    assert any(f"{tmp_path / 'tokenizers'} is imported in place of tokenizers" in line for line in found)


def test_models_cannot_be_downloaded_into_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").write_text("")
    monkeypatch.setenv("RLRUN_MODELS", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    found = lines(disk.check(Context(run_of("model=qwen3-0.6b"), here=True)))
    assert any("which cannot be written; set RLRUN_MODELS" in line for line in found)
