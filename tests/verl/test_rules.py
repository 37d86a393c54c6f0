"""Our copy of verl 0.9.1's config, our rules, and the values that they name, against verl's own code."""

from __future__ import annotations

import contextlib
import inspect
import io
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

pytest.importorskip("verl")
import verl
import verl_rules
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config

from launcher.engines.verl.config import compose as config
from launcher.engines.verl.config import defaults
from launcher.engines.verl.rules import cluster, data, early, optim, rollout, sections, values

FILES = Path(verl.__file__).parent / "trainer" / "config"
LATE = Path(__file__).parents[1] / "engines" / "verl" / "late.yaml"
TABLE = yaml.safe_load(LATE.read_text())
PLACEHOLDERS = ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "/models/qwen")
"""Models of the table, of which verl loads a critic's."""


def composed(name: str, words: list[str]) -> Any:
    with initialize_config_dir(str(FILES), version_base=None):
        return compose(name, overrides=words)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return verl_rules.tiny_model(tmp_path_factory.mktemp("model"))


def test_the_snapshot_is_of_these_files():
    assert defaults.snapshot()["digest"] == defaults.digest(FILES), "run benchmarks/verl_snapshot.py"


CHOICES = [("ppo", name, {}) for name in defaults.CONFIGS["ppo"]]
CHOICES += [("ppo", "ppo_trainer", {"model_engine": one}) for one in ("dp", "megatron", "torchtitan", "veomni")]
CHOICES += [
    ("sft", "sft_trainer_engine", {"engine": one, "optim": one})
    for one in ("fsdp", "megatron", "torchtitan", "veomni", "automodel")
]


@pytest.mark.parametrize(("program", "name", "choices"), CHOICES)
def test_the_snapshot_equals_what_hydra_composes(program, name, choices):
    """Leaf by leaf, with interpolations and without."""
    theirs = composed(name, [f"{group}={choice}" for group, choice in choices.items()])
    ours = defaults.load(program, name, choices, None).node
    assert ours == OmegaConf.to_container(theirs, resolve=False)
    resolved = OmegaConf.to_container(OmegaConf.create(ours), resolve=True)
    assert resolved == OmegaConf.to_container(theirs, resolve=True)


def test_other_files_are_composed_by_hydra(tmp_path):
    """Files that are not those of the snapshot are read themselves."""
    package = tmp_path / "verl"
    for file in [*FILES.rglob("*.yaml"), *defaults.source_files(FILES.parents[1])]:
        target = package / file.relative_to(FILES.parents[1])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.read_text().replace("train_batch_size: 1024", "train_batch_size: 77"))
    made = config.compose(["model_engine=megatron"], "ppo", package / "trainer" / "config")
    assert made.problems == []
    assert made.config["data"]["train_batch_size"] == 77
    assert "megatron" in made.config["actor_rollout_ref"]["actor"]


def test_values_compose_as_with_hydra():
    words = [
        "model_engine=megatron", "actor_rollout_ref.rollout.n=5", "+ray_kwargs.ray_init.num_gpus=1",
        "+data.mine=1", "~data.mine",
        "++critic.new={a: [1, 2]}", "trainer.logger=[console,file]", "data.train_files='a b.parquet'",
        "actor_rollout_ref.actor.optim.lr=1e-6", "trainer.experiment_name=${trainer.project_name}_x",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa", "trainer.total_training_steps=7",
    ]  # fmt: skip
    theirs = OmegaConf.to_container(composed("ppo_trainer", words), resolve=True)
    assert config.compose(words, "ppo").config == theirs


def test_verdicts_equal_verls(model):
    seed = random.SystemRandom().randrange(10**9)
    found = verl_rules.compare(40, seed, model)
    assert not found.differences, f"seed {seed}:\n" + "\n".join(found.differences)


@pytest.mark.parametrize("case", [case for case in TABLE["cases"] if TABLE["bases"][case["base"]]["program"] == "ppo"])
def test_verl_accepts_what_fails_late(case, model):
    given = {word.partition("=")[0] for word in case.get("words", [])}
    start = [word for word in TABLE["bases"][case["base"]]["words"] if word.partition("=")[0] not in given]
    overlong = [f"+{word}" if word.startswith("reward.reward_kwargs") else word for word in case.get("words", [])]
    start = [word for word in start if word.partition("=")[0].lstrip("+") not in given]
    made = composed("ppo_trainer", [*start, *overlong])
    for key in ("actor_rollout_ref.model.path", "critic.model.path"):
        OmegaConf.update(made, key, str(model))
    with contextlib.redirect_stdout(io.StringIO()):
        validate_config(made, need_reference_policy(made), need_critic(made))
    assert not early.problems(OmegaConf.to_container(made, resolve=True, throw_on_missing=False))


def test_named_values_are_those_that_verl_knows():
    from verl.experimental.agent_loop import agent_loop  # noqa: PLC0415
    from verl.experimental.agent_loop.tool_parser import ToolParser  # noqa: PLC0415
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER  # noqa: PLC0415
    from verl.trainer.ppo import core_algos, rollout_corr_helper  # noqa: PLC0415
    from verl.utils.tracking import Tracking  # noqa: PLC0415
    from verl.workers.rollout import base  # noqa: PLC0415

    assert {*values.ESTIMATORS} == {str(getattr(one, "value", one)) for one in core_algos.ADV_ESTIMATOR_REGISTRY}
    assert {*values.LOSSES} == {*core_algos.POLICY_LOSS_REGISTRY}
    assert {*values.PARSERS} == {*ToolParser._registry}
    assert {*values.AGENT_LOOPS} <= {*agent_loop._agent_loop_registry} | {"tool_agent"}
    assert {*values.REJECTION} == rollout_corr_helper.SUPPORTED_ROLLOUT_RS_OPTIONS
    assert {*data.MANAGERS} == {*REWARD_MANAGER}
    assert {*cluster.LOGGERS} == {*Tracking.supported_backend, "tracking"}
    assert {*rollout.ENGINES} == {name for name, _ in base._ROLLOUT_REGISTRY}


@pytest.mark.parametrize("name", optim.TORCH_OPTIMIZERS)
def test_arguments_of_an_optimizer_are_those_of_torch(name):
    import torch  # noqa: PLC0415

    known = {*inspect.signature(vars(torch.optim)[name]).parameters} - {"params"}
    assert {*optim.TORCH_OPTIMIZERS[name]} == known


@pytest.mark.parametrize("source", [*data.SOURCES, "aime2024"])
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


def raises(section: str, *words: str) -> None:
    """Makes the dataclass of a section, as a worker does."""
    omega_conf_to_dataclass(
        OmegaConf.select(composed("ppo_trainer", ["actor_rollout_ref.rollout.name=vllm", *words]), section)
    )


ROLLOUT = "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    "word",
    [
        f"{ROLLOUT}.mode=sync",
        f"{ROLLOUT}.pipeline_model_parallel_size=2",
        f"{ROLLOUT}.expert_parallel_size=8",
        f"+{ROLLOUT}.nonsense=1",
    ],
)
def test_a_worker_refuses_the_rollout(word):
    with pytest.raises((HydraException, NotImplementedError, ValueError, AssertionError)):
        raises(ROLLOUT, word)


def test_late_failures_are_in_verls_code():
    import torch  # noqa: PLC0415
    from tensordict import TensorDict  # noqa: PLC0415
    from verl.trainer.ppo import core_algos  # noqa: PLC0415
    from verl.trainer.ppo.v1 import get_trainer_cls  # noqa: PLC0415
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer  # noqa: PLC0415
    from verl.utils import tensordict_utils  # noqa: PLC0415
    from verl.utils.reward_score import default_compute_score  # noqa: PLC0415
    from verl.utils.seqlen_balancing import rearrange_micro_batches  # noqa: PLC0415
    from verl.utils.tracking import Tracking  # noqa: PLC0415
    from verl.workers.engine.base import EngineRegistry  # noqa: PLC0415
    from verl.workers.engine.utils import prepare_micro_batches  # noqa: PLC0415
    from verl.workers.rollout.base import get_rollout_class  # noqa: PLC0415

    numbers = torch.zeros(2, 3)
    rows = TensorDict({"input_ids": torch.zeros(10, 4), "attention_mask": torch.ones(10, 4)}, batch_size=10)
    cut = rows.clone()
    tensordict_utils.assign_non_tensor(cut, use_dynamic_bsz=False, micro_batch_size_per_gpu=3)
    buffer = {"trainer_mode": "sync", "trainer_config": {}, "max_off_policy_strategy": "drop", "sampler_kwargs": {}}
    late = {
        "loss_mode": lambda: core_algos.get_policy_loss_fn("clip-cov"),
        "estimator": lambda: core_algos.get_adv_estimator_fn("grop"),
        "kl": lambda: core_algos.kl_penalty(numbers, numbers, "full"),
        "controller": lambda: core_algos.get_kl_controller(SimpleNamespace(type="adaptative", kl_coef=0.1)),
        "trainer": lambda: get_trainer_cls("async"),
        "threshold": lambda: ReplayBuffer(max_off_policy_threshold=0, **buffer),
        "logger": lambda: Tracking("p", "e", ["console", "tensorbord"]),
        "source": lambda: default_compute_score("gsm8k", "1", "1"),
        "rollout": lambda: get_rollout_class("hf", "async"),
        "strategy": lambda: EngineRegistry.get_engine_cls("language_model", "fsdp3"),
        "critic": lambda: EngineRegistry.get_engine_cls("value_model", "fsdp_turbo"),
        "micro": lambda: prepare_micro_batches(cut),
        "tokens": lambda: rearrange_micro_batches(rows, max_token_len=3),
    }
    accepted = []
    for name, call in late.items():
        try:
            call()
            accepted.append(name)
        except (AssertionError, ValueError, NotImplementedError, KeyError):
            pass
    assert accepted == []


def test_sections_refuse_as_verls_classes():
    """Each value that a class takes, and one that it does not."""
    import verl.utils.profiler.config as profiler  # noqa: PLC0415
    import verl.workers.config as workers  # noqa: PLC0415

    for name, fields in sections.ALLOWED.items():
        made = getattr(workers, name, None) or getattr(profiler, name)
        for field, allowed in fields.items():
            for value in (*allowed, "nonsense"):
                try:
                    made(**{field: value})
                    refused = False
                except (AssertionError, ValueError):
                    refused = True
                ours = list(sections.refused({"_target_": f"verl.{name}", field: value}, "x"))
                assert bool(ours) == refused, (name, field, value)
