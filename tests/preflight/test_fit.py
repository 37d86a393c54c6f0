"""What nobody gave is fitted to algorithm, model, rows and memory; values that learn nothing are named."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from launcher.config.resolve import resolve
from launcher.core import machine
from launcher.hubs.manifest import Manifest
from launcher.preflight.checks import hardware, learning
from launcher.preflight.checks.context import Context
from launcher.preflight.plan import plan, run_of
from launcher.spec.hardware import computes_bfloat16

GRPO = ["algorithm=grpo", "model=tiny", "data=reverse"]
SFT = ["algorithm=sft", "model=tiny", "data=reverse"]
HUB = ["model=qwen3-0.6b", "data=gsm8k"]
GPUS = ["model=qwen2.5-7b-instruct", "data=gsm8k", "reward=gsm8k", "hardware=h100x8"]
LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32,
    "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip
RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (GRPO, {"sampler.n": 8, "optim.lr": 1e-4}),
        (["algorithm=ppo", *SFT[1:]], {"sampler.n": 1, "critic.optim.lr": 1e-3}),
        (["algorithm=sft", *HUB], {"optim.lr": 2e-5, "data.max_prompt_length": 512, "data.max_response_length": 1024}),
        (["algorithm=sft", *HUB, "model.lora_rank=8"], {"optim.lr": 2e-4}),
        (["algorithm=dpo", *HUB, "data=ultrafeedback", "model.lora_rank=8"], {"optim.lr": 5e-6}),
        (["algorithm=sft", "model=tiny", "data=hub", "data.repo=a/b", "model.max_position_embeddings=300",
          "data.max_response_length=50"], {"data.max_prompt_length": 250}),
        (["algorithm=sft", *HUB, "hardware.nproc_per_node=3"], {"data.train_batch_size": 255}),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else None,
)  # fmt: skip
def test_what_nobody_gave_fits_algorithm_and_model(words: list[str], expected: dict[str, Any]) -> None:
    words = [word for word in words if not (word == "data=gsm8k" and "data=ultrafeedback" in words)]
    run: Any = resolve(words)
    for name, value in expected.items():
        found = run
        for part in name.split("."):
            found = getattr(found, part)
        assert found == value, name


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["trainer.total_training_steps=9"], "trainer.total_training_steps: 9 updates in 9 steps: "),
        (["trainer.total_epochs=2"], "trainer.total_epochs: "),
        (["trainer.total_training_steps=3"], ""),
    ],
)  # fmt: skip
def test_too_few_updates_are_named_with_enough(words: list[str], fix: str, tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}+1>", "response": str(n + 1)}) + "\n" for n in range(40)))
    typed = ["algorithm=sft", "model=tiny", f"data={file}"]
    warned = [each for each in plan([*typed, *words]).results if "hardly anything is learnt" in each.message]
    assert [each.line.startswith(fix) for each in warned] == [True] * bool(fix)
    for each in warned:
        enough = plan([*typed, f"{each.subject}={each.fix.removeprefix('use ')}"])
        assert not any("hardly anything" in again.message for again in enough.results)


ROWS = [{"prompt": f"What is {n} + 1?", "response": str(n + 1), "ground_truth": str(n + 1)} for n in range(3000)]


@pytest.mark.parametrize(
    ("words", "rows", "expected"),
    [
        # 270 rows make 8 batches of 32: a model that starts from nothing needs many updates
        ([], 300, {"data.val_share": 0.1, "trainer.total_epochs": 125, "trainer.test_freq": 200,
                   "trainer.save_freq": 200}),
        (["trainer.total_epochs=1", "trainer.test_freq=-1"], 300,
         {"trainer.total_epochs": 1, "trainer.test_freq": -1, "trainer.save_freq": -1}),
        (["trainer.total_training_steps=30"], 300, {"trainer.total_epochs": 1, "trainer.test_freq": 6}),
        (["algorithm=grpo"], 300, {"trainer.total_epochs": 10, "data.val_share": 0.1}),
        ([], 19, {"data.val_share": 0.0, "trainer.test_freq": -1}),
        ([], 20, {"data.val_share": 0.1}),
        (["data.val_share=0.5"], 30, {"data.val_share": 0.5}),
        ([], 40, {"data.train_batch_size": 8}),
        ([], 3, {"data.train_batch_size": 3}),
        ([], 3000, {"data.train_batch_size": 256}),
        (["hardware.nproc_per_node=3"], 40, {"data.train_batch_size": 6}),
    ],
)  # fmt: skip
def test_batches_and_frequencies_fit_the_rows_and_some_are_held_out(
    words: list[str], rows: int, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:rows]))
    algorithm = [] if "algorithm=grpo" in words else ["algorithm=sft"]
    page = plan([*algorithm, "model=tiny", "data=own.jsonl", *words])
    run: Any = page.run
    assert page.ok and set("What is?") < set(run.model.alphabet)
    assert {name: getattr(getattr(run, name.split(".")[0]), name.split(".")[1]) for name in expected} == expected
    (line,) = (result.message for result in page.results if result.subject == "held out")
    share = run.data.val_share
    assert line.startswith(f"{min(round(share * rows), 256)} of {rows:,} rows" if share else "nothing")
    assert share or "data.val_files=FILE" in line
    if rows == 3:
        assert page.origins["data.train_batch_size"].where == "fitted to rows and processes"


def test_characters_without_a_token_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:300]))
    page = plan(["algorithm=sft", "model=tiny", "data=own.jsonl", "model.alphabet=abcdefghijklmnopqrstuvwxyz"])
    (found,) = (result for result in page.results if result.subject == "model.alphabet")
    assert found.level == "FAIL"
    letters = "".join(sorted({*"What is + 1?0123456789"} - {"W"}))
    page = plan(["algorithm=sft", "model=tiny", "data=own.jsonl", f"model.alphabet='{letters}'"])
    (found,) = (result for result in page.results if result.subject == "model.alphabet")
    assert found.level == "WARN" and "of the characters of the prompts" in found.message


def test_memory_that_is_not_enough_shards_rounds_and_recomputes_unless_that_is_given() -> None:
    page = plan(["algorithm=grpo", *GPUS])
    run: Any = page.run
    assert (run.engine.strategy, run.engine.mixed_precision) == ("fsdp2", True)
    (of_memory,) = (result for result in page.results if result.subject == "memory")
    assert of_memory.level == "OK" and "engine.strategy" in {value.name for value in page.differs}
    run = run_of(["algorithm=grpo", *GPUS, "engine.strategy=ddp", "engine.mixed_precision=false"])
    assert (run.engine.strategy, run.engine.mixed_precision) == ("ddp", False)


def test_a_gpu_without_bfloat16_is_not_asked_for_it() -> None:
    words = ["algorithm=sft", *SFT[2:], "model=qwen3-0.6b", "hardware=gpu", "hardware.device=v100-32g"]
    run: Any = run_of(words)
    assert not run.engine.mixed_precision
    page = plan([*words, "engine.mixed_precision=true"])
    assert any("computes no bfloat16" in result.message for result in page.results)


@pytest.mark.parametrize(
    ("name", "mixed"),
    [("Tesla V100S-PCIE-32GB", False), ("NVIDIA GeForce RTX 2080 Ti", False), ("Quadro RTX 8000", False),
     ("NVIDIA RTX 2000 Ada Generation", True), ("NVIDIA A100-SXM4-40GB", True)],
)  # fmt: skip
def test_the_name_of_a_gpu_tells_whether_it_computes_bfloat16(name: str, mixed: bool) -> None:
    assert computes_bfloat16(name) is mixed


@pytest.mark.parametrize(("name", "mixed"), [("Tesla T4", False), ("NVIDIA L4", True)])
def test_the_name_of_the_gpu_that_is_here_decides(name: str, mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine.Gpus("1", "12.4", (machine.Gpu(0, name, 16 * 2**30, 16 * 2**30),))
    monkeypatch.setattr(machine, "query_gpus", lambda: found)
    page = plan(["algorithm=sft", *SFT[2:], "model=qwen3-0.6b", "hardware=gpu", "hardware.n_gpus_per_node=1"])
    run: Any = page.run
    assert run.engine.mixed_precision == mixed
    if mixed:
        assert page.origins["engine.mixed_precision"].where == "faster on GPUs, in less memory"
    words = [*SFT, "hardware=gpu", "hardware.n_gpus_per_node=1"]
    for word in ("model.dtype=bfloat16", "engine.mixed_precision=true"):
        given = hardware.check(Context(resolve([*words, word]), here=False))
        assert mixed != any("only by emulation" in each.message for each in given)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [("dapo-gsm8k", []), ("dpo", ["hardware.memory_gb=24"]),
     pytest.param("grpo-gsm8k", ["hardware.memory_gb=80"], marks=pytest.mark.long),
     pytest.param("sft", ["hardware.memory_gb=24"], marks=pytest.mark.long)],
)  # fmt: skip
def test_a_recipe_plans_ok_on_the_hardware_that_it_names(
    recipe: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # of which the files are copied for the script
    files = []
    if recipe in ("sft", "dpo"):
        row = (
            {"prompt": "2+2?", "response": "4"} if recipe == "sft" else {"prompt": "a", "chosen": "b", "rejected": "c"}
        )
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps({**row, "n": n}) + "\n" for n in range(600)))
        files = [f"data.train_files={tmp_path / 'rows.jsonl'}"]
    page = plan([*files, *words], recipe=str(RECIPES / f"{recipe}.sh"))
    assert page.ok, [result.line for result in page.results if result.level == "FAIL"]
    assert [result.level for result in page.results if result.subject == "memory"] == ["OK"]


OVERLONG = ["algorithm.overlong_buffer_len=16", "data.max_response_length=64"]


@pytest.mark.parametrize(
    ("words", "level", "subject"),
    [
        ([*SFT, "optim.lr=5"], "WARN", "optim.lr"),
        ([*SFT, "optim.lr=1e-13"], "WARN", "optim.lr"),
        ([*SFT, "model.dtype=bfloat16", "optim.lr=2.5e-5"], "WARN", "optim.lr"),
        ([*SFT, "optim.betas=[0.99,0.9]"], "WARN", "optim.betas"),
        ([*SFT, "optim.weight_decay=90"], "WARN", "optim.weight_decay"),
        ([*SFT, "optim.clip_grad=1e-12"], "WARN", "optim.clip_grad"),
        ([*GRPO, "sampler.top_k=1"], "FAIL", "sampler.top_k"),
        ([*GRPO, "sampler.top_p=0.001"], "WARN", "sampler.top_p"),
        ([*GRPO, "sampler.temperature=0.02"], "WARN", "sampler.temperature"),
        ([*GRPO, "algorithm.min_group_std=0.6"], "FAIL", "algorithm.min_group_std"),
        ([*GRPO, "algorithm.clip_ratio_low=0.4"], "WARN", "algorithm.clip_ratio_low"),
        ([*GRPO, "algorithm.kl_loss_coef=0.01", "algorithm.kl_loss_type=k1"], "WARN", "algorithm.kl_loss_type"),
        (["algorithm=gspo", *GRPO[1:], "algorithm.clip_ratio_high=0.2"], "WARN", "algorithm.clip_ratio_high"),
        (["algorithm=ppo", *GRPO[1:], "algorithm.gamma=0.99"], "WARN", "algorithm.gamma"),
        (["algorithm=dpo", *SFT[1:], "algorithm.beta=100"], "WARN", "algorithm.beta"),
        # unusual, and well
        ([*SFT, "optim.lr=3e-3", "optim.betas=[0.9,0.95]", "optim.weight_decay=0.1"], "", ""),
        ([*GRPO, "sampler.temperature=0.6", "sampler.top_k=20", "sampler.top_p=0.95", "algorithm.min_group_std=0.1"],
         "", ""),
        (["algorithm=sft", *HUB, "model.lora_rank=8", "model.dtype=bfloat16"], "", ""),
        (["algorithm=sft", *HUB, "model.lora_rank=256", "model.lora_alpha=16"], "", ""),
        (["algorithm=dapo", *GRPO[1:], *OVERLONG, "algorithm.max_response_length=64"], "", ""),
        (["algorithm=dpo", *SFT[1:], "algorithm.beta=2", "trainer.total_epochs=20"], "", ""),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else None,
)  # fmt: skip
def test_what_learns_nothing_is_named(words: list[str], level: str, subject: str) -> None:
    found = [(one.level, one.subject, one.fix[:4]) for one in learning.check(Context(resolve(words), here=True))]
    assert found == ([(level, subject, "use ")] if subject else [])


# ---- a hub's model that is here


def downloaded(store: Path, monkeypatch: pytest.MonkeyPatch, **config: int) -> str:
    """The id of a model in the store, of 1.1B parameters."""
    folder = store / "o" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA | config))
    save_file({"lm_head.weight": np.zeros((2, 2), np.float32)}, folder / "model.safetensors")
    sizes = {file.name: {"bytes": file.stat().st_size, "sha256": ""} for file in folder.iterdir()}
    (folder / ".rlrun").mkdir()
    made = Manifest("huggingface", "model", "o/model", "main", "0", sizes)
    (folder / ".rlrun/manifest.json").write_text(json.dumps(asdict(made)))
    monkeypatch.setenv("RLRUN_MODELS", str(store))
    return "model.path=o/model"


def test_lengths_fit_the_positions_of_a_downloaded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["algorithm=sft", "model=hf", downloaded(tmp_path, monkeypatch, max_position_embeddings=1024), SFT[2]]
    run: Any = plan(words).run
    assert run.data.max_prompt_length + run.data.max_response_length <= 1024 and run.model.path == "o/model"
    page = plan([*words, "data.max_response_length=4096"])
    (found,) = (result for result in page.results if "positions" in result.message)
    assert (found.level, found.subject, found.fix) == ("FAIL", "data.max_response_length", "use a sum of at most 1024")


def test_memory_is_fitted_for_a_downloaded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = downloaded(tmp_path, monkeypatch)
    words = ["algorithm=grpo", "model=hf", SFT[2], "data.max_response_length=1024", "hardware=gpu",
             "hardware.n_gpus_per_node=1", "hardware.memory_gb=24"]  # fmt: skip
    page = plan([*words, model])
    assert page.run and page.memory and page.run.model.path == "o/model"
    changed = {value.name for value in page.differs}
    assert changed & {"model.enable_gradient_checkpointing", "trainer.micro_batch_size_per_gpu"}
    assert page.run == replace(run_of([*words, f"model.path={tmp_path / 'o/model'}"]), model=page.run.model)
    assert [result.level for result in page.results if result.subject == "memory"] == ["OK"]
