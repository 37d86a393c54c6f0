"""A model's folder, rows, and a program that stands for verl."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from launch_model import Model

from launcher.engines.verl import ask

INSTALLED = ["cachetools", "fastapi", "flash_attn", "transfer_queue", "uvicorn", "verl", "vllm"]
FAKE = Path(__file__).with_name("fake_verl.py")


@pytest.fixture(autouse=True, scope="session")
def _looked_up_once() -> Iterator[None]:
    """Tests plan dozens of runs for one Python; a program one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ask, "probe", cache(ask.probe))
        yield


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    Model(random=True).save(folder)
    return folder


def write_rows(folder: Path, name: str, count: int, **changed: object) -> str:
    """A file of verl's rows, with other values in some columns; a column of None is left out."""
    import pyarrow as pa  # noqa: PLC0415  # half a second
    import pyarrow.parquet as pq  # noqa: PLC0415

    made = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"{name} {n}+1?"}],
            "reward_model": {"style": "rule", "ground_truth": str(n + 1)},
        }
        | changed
        for n in range(count)
    ]
    kept = [{key: value for key, value in row.items() if value is not None} for row in made]
    pq.write_table(pa.Table.from_pylist(kept), folder / f"{name}.parquet")
    return str(folder / f"{name}.parquet")


@pytest.fixture(scope="session")
def rows_of() -> Callable[..., str]:
    return write_rows


@pytest.fixture(scope="session")
def verl_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for name, count in (("train", 2000), ("test", 100)):
        write_rows(folder, name, count)
    return folder


@pytest.fixture
def folder(verl_rows: Path, tmp_path: Path) -> Path:
    """2,000 rows that verl reads in train.parquet, and 100 held-out ones in test.parquet."""
    for name in ("train", "test"):
        (tmp_path / f"{name}.parquet").hardlink_to(verl_rows / f"{name}.parquet")
    return tmp_path


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """40 prompts to learn from, and 8 others."""
    for name, numbers in (("train", range(40)), ("val", range(50, 58))):
        rows = [{"prompt": f"{n} + 1 = ?", "ground_truth": str(n + 1), "data_source": "sums"} for n in numbers]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def words(model_folder: Path, sums: Path) -> Callable[..., list[str]]:
    """The arguments of a run with the program that stands for verl; `wrong` is its FAKE_VERL."""

    def made(*more: str, wrong: str = "") -> list[str]:
        python = sums / "fake-python"
        installed = json.dumps({"packages": INSTALLED, "verl": "0.9.1"})
        answers = f"""[ "$1" = -c ] && echo '{installed}' && exit"""  # what a plan asks for
        python.write_text(f'#!/bin/sh\n{answers}\nFAKE_VERL="{wrong}" exec {sys.executable} {FAKE} "$@"\n')
        python.chmod(0o755)
        return [
            "algorithm=grpo", f"model={model_folder}", "data=files", f"data.train_files=[{sums}/train.jsonl]",
            f"data.val_files=[{sums}/val.jsonl]", "engine=verl", f"engine.python={python}", "hardware=cpu",
            "engine.env={VERL_USE_EXTERNAL_MODULES: verl_cpu_platform}", "sampler.n=4", "data.train_batch_size=8",
            "data.max_prompt_length=64", "data.max_response_length=8", "trainer.total_training_steps=6",
            "trainer.save_freq=2", "trainer.test_freq=2", *more,
        ]  # fmt: skip

    return made
