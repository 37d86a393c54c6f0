"""A run brings its models here before any process starts, and remembers where they lie."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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
