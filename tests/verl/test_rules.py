"""Our copy of verl 0.9.1's config, our rules, and the values that they name, against verl's own code."""

from __future__ import annotations

import random
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl")
import verl
import verl_rules
import verl_snapshot
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from launcher.engines.verl import ask
from launcher.engines.verl.config import compose as config
from launcher.engines.verl.config import defaults
from launcher.engines.verl.rules.table import read_table

FILES = Path(verl.__file__).parent / "trainer" / "config"


def composed(name: str, words: list[str]) -> Any:
    with initialize_config_dir(str(FILES), version_base=None):
        return compose(name, overrides=words)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return verl_rules.tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("program", "name", "choices"),
    [
        ("ppo", "ppo_trainer", {}), ("ppo", "ppo_megatron_trainer", {}),
        ("ppo", "ppo_trainer", {"model_engine": "megatron"}), ("sft", "sft_trainer_engine", {}),
        ("sft", "sft_trainer_engine", {"engine": "megatron", "optim": "megatron"}),
    ],
)  # fmt: skip
def test_the_snapshot_equals_what_hydra_composes(program, name, choices):
    """Leaf by leaf, with interpolations; and the types of the dataclasses that it names."""
    theirs = composed(name, [f"{group}={choice}" for group, choice in choices.items()])
    ours = defaults.load(program, name, choices)
    assert ours == OmegaConf.to_container(theirs, resolve=False)
    for target in verl_snapshot.targets(ours):
        known = defaults.snapshot()["classes"][target.rpartition(".")[2]]
        assert {*known} == {*verl_snapshot.types_of(target)}, target


def test_values_compose_as_with_hydra():
    words = [
        "model_engine=megatron", "actor_rollout_ref.rollout.n=5", "+ray_kwargs.ray_init.num_gpus=1",
        "++critic.new={a: [1, 2]}", "trainer.logger=[console,file]", "data.train_files='a b.parquet'",
        "actor_rollout_ref.actor.optim.lr=1e-6", "trainer.experiment_name=${trainer.project_name}_x",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa", "trainer.total_training_steps=7",
    ]  # fmt: skip
    theirs = OmegaConf.to_container(composed("ppo_trainer", words), resolve=True)
    assert config.compose(words, "ppo").config == theirs


def test_what_verl_refuses_is_named_without_it(model):
    seed = random.SystemRandom().randrange(10**9)
    found = verl_rules.compare(40, seed, model)
    assert not found.missed, f"seed {seed}:\n" + "\n".join(found.missed)


@pytest.mark.parametrize(
    ("word", "refused"),
    [
        ("actor_rollout_ref.actor.loss_agg_mode=token-mean", ""),
        ("actor_rollout_ref.actor.loss_agg_mode=bogus", "loss_agg_mode"),
        ("actor_rollout_ref.rollout.mode=sync", "mode"),
        ("data.train_batch_sise=8", "train_batch_sise"),
    ],
)
def test_verl_is_asked(model, tmp_path, monkeypatch, word, refused):
    """Its own verdict, which is kept: the second question starts no process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calm = {key: values[0] for key, values in verl_rules.VALUES.items()}
    words = [
        f"{key}={'null' if value is None else value}" for key, value in calm.items() if key != word.partition("=")[0]
    ]
    words += [f"actor_rollout_ref.model.path={model}", word]
    found = ask.ask(sys.executable, version("verl"), "ppo", words, {})
    assert (found is None) == (not refused)
    assert found is None or (found.level == "FAIL" and refused in found.message)
    monkeypatch.setattr(ask, "ASKED_S", 1e-3)
    assert ask.ask(sys.executable, version("verl"), "ppo", words, {}) == found


def test_named_values_are_those_that_verl_knows():
    from verl.trainer.ppo import core_algos  # noqa: PLC0415
    from verl.workers.rollout import base  # noqa: PLC0415

    allowed = {key: {*row.allowed} for row in read_table().settings if row.allowed for key in row.key.split()}
    estimators = {str(getattr(name, "value", name)) for name in core_algos.ADV_ESTIMATOR_REGISTRY}
    assert allowed["algorithm.adv_estimator"] == estimators
    assert allowed["actor_rollout_ref.actor.policy_loss.loss_mode"] == {*core_algos.POLICY_LOSS_REGISTRY}
    assert {name for name, _ in base._ROLLOUT_REGISTRY} == {"vllm", "sglang", "trtllm"}


@pytest.mark.parametrize("source", [*read_table().sources, "aime2024"])
def test_named_data_sources_have_a_reward(source):
    """Whatever a reward says of this answer, or needs that is not installed: verl knows the source."""
    from verl.utils.reward_score import default_compute_score  # noqa: PLC0415

    if source in ("codecontests", "apps", "codeforces", "taco"):
        return  # they run the answer
    try:
        default_compute_score(source, "no answer", {"target": "1"} if source.startswith("search") else "1")
    except ImportError:
        return
    except NotImplementedError as error:
        pytest.fail(str(error))
