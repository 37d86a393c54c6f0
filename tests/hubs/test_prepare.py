"""A run brings its models here before any process starts, and remembers where they lie."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.config.resolve import resolve
from launcher.core.problems import Problems
from launcher.launch.prepare import fetched, localized
from launcher.models.pretrained import Pretrained
from launcher.rewards.combined import Auto, Weighted
from launcher.rewards.model import RewardModel
from launcher.spec.run import RunSpec

CONFIG = {"model_type": "qwen3"}
WEIGHTS = (2).to_bytes(8, "little") + b"{}"  # a safetensors file without tensors


def prepared(run: RunSpec, sinks: list[Any]) -> RunSpec:
    return localized(run, fetched(run, sinks))


def run_of(*words: str) -> RunSpec:
    return resolve(["algorithm=grpo", "data=reverse", "sampler.n=2", "model=hf", *words])


def here(run: RunSpec) -> str:
    assert isinstance(run.model, Pretrained)
    return run.model.path


def test_both_models_become_folders(hub: Any, tmp_path: Path, view: Any) -> None:
    hub.add("o/policy", {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": WEIGHTS})
    hub.add("o/judge", {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": WEIGHTS})
    run = run_of("model.path=o/policy", "reward=model", "reward.path=o/judge", "reward.source=modelscope")
    found, shown = prepared(run, [view]), view.shown
    assert here(found) == str(tmp_path / "store/o/policy")
    assert isinstance(found.reward, RewardModel) and found.reward.path == str(tmp_path / "store/o/judge")
    assert any(phase.startswith("downloading o/judge") for phase, _ in shown)
    assert {asked.path.split("?")[0] for asked in hub.asked if "judge" in asked.path} & {
        "/api/v1/models/o/judge/repo/files"
    }
    asked = len(hub.asked)
    assert prepared(run, []) == found
    assert len(hub.asked) == asked  # what is here is not asked for again


def test_a_reward_model_deep_in_a_sum_becomes_a_folder(hub: Any, tmp_path: Path) -> None:
    """The engine loads it from wherever it stands, so it is fetched from wherever it stands."""
    hub.add("o/judge", {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": WEIGHTS})
    run = resolve(["algorithm=grpo", "data=reverse", "sampler.n=2", "model=tiny"])
    judge = RewardModel(path="o/judge")
    deep = Auto(parts={"sum": Weighted(parts={"judge": judge, "given": run.reward})})
    found = prepared(replace(run, reward=deep), []).reward
    here = replace(judge, path=str(tmp_path / "store/o/judge"))
    assert found == Auto(parts={"sum": Weighted(parts={"judge": here, "given": run.reward})})


def test_offline_says_what_is_missing(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(Problems) as caught:
        prepared(run_of("model.path=o/policy"), [])
    assert caught.value.lines == [
        "o/policy: not here, and HF_HUB_OFFLINE forbids to download it; unset HF_HUB_OFFLINE once"
    ]
    assert hub.asked == []


ORDERS = [
    # settings, which hub is asked first
    ([], "/api/models/"),
    (["model.source=modelscope"], "/api/v1/"),
    (["model.sources=[modelscope,huggingface]"], "/api/v1/"),
    (["model.sources=[modelscope]", "model.source=huggingface"], "/api/models/"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "first"), ORDERS, ids=[" ".join(row[0]) for row in ORDERS])
def test_hubs_are_asked_in_the_order_given(words: list[str], first: str, hub: Any) -> None:
    hub.add("o/policy", {"config.json": b"{}", "model.safetensors": WEIGHTS})
    prepared(run_of("model.path=o/policy", *words), [])
    assert hub.asked[0].path.startswith(first)


@pytest.mark.slow
def test_a_run_from_a_hub(hub: Any, commands: Any, small: list[str], tmp_path: Path) -> None:
    """A model that was trained here, put on a hub, is fetched and trained on; the run remembers the folder."""
    rlrun = commands(tmp_path)
    words = [*small, "algorithm=sft", "trainer.total_training_steps=1"]
    assert rlrun("train", *words, "trainer.experiment_name=a").returncode == 0
    policy = rlrun.run("a") / "checkpoints" / "step_000001" / "policy"
    hub.add("o/policy", {path.name: path.read_bytes() for path in policy.iterdir()})
    of_data = [word for word in words if not word.startswith("model")]
    output = rlrun("train", *of_data, "model=hf", "model.path=o/policy", "trainer.experiment_name=b")
    assert output.returncode == 0, output.stderr
    spec = yaml.safe_load((rlrun.run("b") / "spec.yaml").read_text())
    found = json.loads((rlrun.run("b") / "prepared.json").read_text())
    assert spec["model"]["path"] == "o/policy", "as it was asked"
    assert (found["model"]["path"], found["directory"]) == (str(tmp_path / "store/o/policy"), str(tmp_path))
    assert "o/policy" in (rlrun.run("b") / "words.txt").read_text()
    assert replace(Pretrained(path=found["model"]["path"])).shape is not None
    locked = json.loads((rlrun.run("b") / "lock.json").read_text())["model"]
    assert (locked["repo"], locked["commit"]) == ("o/policy", "c" * 40) and len(locked["files"]) == 64
    shutil.rmtree(rlrun.run("b") / "checkpoints")  # it goes on from the model itself, which is now another one
    of = tmp_path / "store/o/policy/.rlrun/manifest.json"
    of.write_text(re.sub("[0-9a-f]{64}", "e" * 64, of.read_text(), count=1))
    again = rlrun("train", "--resume", "b")
    assert (again.returncode, again.stderr) == (
        2, "✗ model: is not what the run began with (its files differ); use the original model\n"
    )  # fmt: skip
