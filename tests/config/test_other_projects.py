"""Names of other projects, and misspelt names of ours, are answered with what to type."""

from __future__ import annotations

import runpy
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import launches
import names
import pytest
from launch_site import site

from launcher.cli.main import COMMANDS, load
from launcher.config.arguments import OPTIONS, join_options
from launcher.config.compose import config_file, groups
from launcher.config.descriptions import written
from launcher.config.names.conversions import RULES, RunContext, convert, is_complete
from launcher.config.names.table import Project, Translation, table
from launcher.config.nodes import PLAIN, flat, has_setting
from launcher.config.request import SourcedOverride
from launcher.config.resolve import resolve, try_resolve
from launcher.config.suggestions import Suggester, Suggestion
from launcher.core.problems import suggest, without_style
from launcher.preflight.plan import plan
from launcher.spec.stored import to_node

GROUPS = groups()
FILES = {group: {each: config_file(f"{group}/{each}", None) for each in of} for group, of in GROUPS.items()}
BASE = ["model=tiny", "data=reverse", "hardware.nproc_per_node=2"]
ROOT = Path(__file__).parents[2]


@cache
def guide(algorithm: str = "grpo") -> Suggester:
    more = ["sampler.n=4"] if algorithm in ("grpo", "dapo", "gspo") else []
    return Suggester(to_node(resolve([f"algorithm={algorithm}", *BASE, *more])), FILES)


def answers(words: list[str], algorithm: str = "grpo") -> list[Suggestion]:
    unknown = join_options([SourcedOverride(word, word) for word in words])
    suggester = Suggester(guide(algorithm).node, FILES, (), {each.plain: each.value for each in unknown})
    return [suggester.suggestion(each) for each in unknown]


def words_of(meaning: Translation) -> Iterator[list[str]]:
    """All that it may say to type, for values that it knows and for values of our own."""
    situation = RunContext()
    values = [value for value in meaning.values or () if value != "*"]
    if not values or "*" in (meaning.values or ()):
        name = meaning.ours[0] if meaning.ours else ""
        values += CONVERTED.get(meaning.convert, []) if meaning.convert else [VALUES.get(name) or default_of(name)]
    for value in values:
        yield convert(meaning, value, situation) or []


CONVERTED = {
    "dataset": ["data.jsonl", "owner/name"], "modules": ["all", "q_proj,v_proj"], "bf16": ["true", "full", "bf16"],
    "algorithm": ["gae", "grpo", "gspo", "true"], "clip": ["0.1"], "betas": ["0.95"],
    "lora": ["true", "32"], "lora_twice": ["lora", "32"], "functions": ["owner/name"],
    "one_key": ["[p]"], "one_response_key": ["[r]"],
    "warmup": ["10", "0.1"],
    **{name: ["8"] for name in ("lora_verl", "lora_peft", "gpus")},
    **{name: ["10", "0.1"] for name in ("save_every", "test_every")},
}  # fmt: skip
VALUES = {
    "algorithm": "grpo", "data.train_files": "x.jsonl", "data.val_files": "x.jsonl", "reward.name": "score",
    "reward.kwargs": "{a:1}", "cluster.address": "host:1", "trainer.best_metric": "val/loss", "reward.memory_mb": "512",
    "trainer.max_tokens_per_gpu": "4096", "hardware.n_gpus_per_node": "2", "sampler.gpu_memory_utilization": "0.5",
    "model.path": "owner/name", "model.revision": "main", "model.trust_remote_code": "false", "data.prompt_key": "p",
    "data.response_key": "r", "reward.path": "FILE.py", "sampler.enforce_eager": "true",
    "sampler.tensor_parallel_size": "1",
    "sampler.max_model_len": "4096", "trainer.experiment_name": "x", "algorithm.clip_ratio_c": "3.0",
}  # fmt: skip
"""Values of settings that have no default, or for which it says nothing."""


def default_of(name: str) -> str:
    """A value that the setting takes: its default."""
    runs = (flat(guide(algorithm).node) for algorithm in ALGORITHMS)
    return written(next((value for run in runs if (value := run.get(name)) not in (None, [])), 8))


ALGORITHMS = ("grpo", "ppo", "dapo", "dpo", "sft")


def known(word: str) -> bool:
    """Whether it names a setting that some choice has, or a choice."""
    key, _, value = word.partition("=")
    if key in GROUPS:
        return value in GROUPS[key] or "{}" in value or key == "data"
    return key in guide().holders


# ---- the table


NAMED = [meaning for meaning in table().meanings if meaning.names]


def test_a_meaning_names_what_there_is() -> None:
    for meaning in NAMED:
        assert meaning.ours or meaning.instead, meaning
        assert all(name in guide().holders or name in (*GROUPS, *PLAIN) for name in meaning.ours), meaning.ours
        assert all(known(word) for words in words_of(meaning) for word in words) or not meaning.ours, meaning
        assert not meaning.convert or meaning.convert in RULES
        assert set(meaning.unless + meaning.switch) <= {*table().named, *guide().holders, *GROUPS}, meaning
        pieces = [word for text in meaning.verl_engine.values() for word in text.split()]
        assert all(known(word) for word in pieces if word != "engine.extra"), meaning
        assert all(len(set(theirs)) == len(theirs) for theirs in meaning.names.values()), meaning


def test_what_stands_for_a_choice_is_there() -> None:
    for group, choices in table().choices.items():
        assert not set(choices) & set(GROUPS[group])
        assert all(known(word) for text in choices.values() for word in text.split())


def needed(words: list[str], algorithm: str) -> list[str]:
    """A run that can have these words."""
    keys = {word.partition("=")[0] for word in words}
    chosen = next((word.partition("=")[2] for word in words if word.startswith("algorithm=")), algorithm)
    gpus = "hardware.n_gpus_per_node" in keys or "sampler.tensor_parallel_size" in keys
    some = {
        "algorithm": algorithm, "model": "qwen3-0.6b", "data": "files", "data.train_files": "x.jsonl",
        "data.train_batch_size": "64", "hardware": "gpu" if gpus else "cpu",
        **({} if chosen in ("sft", "dpo") else {"sampler.n": "4"}),
        **({} if gpus or "hardware" in keys else {"hardware.nproc_per_node": "2"}),
        **({"reward": "python", "reward.path": "FILE.py"} if "reward.name" in keys or "reward.kwargs" in keys else {}),
        **({"reward": "code"} if "reward.workers" in keys else {}),
        **({"data.repo": "owner/name"} if "data=hub" in words else {}),
        **({"algorithm.loss_agg_mode": SUM_NORM} if "algorithm.loss_scale_factor" in keys else {}),
    }  # fmt: skip
    return [*(f"{key}={value}" for key, value in some.items() if key not in keys), *words]


SUM_NORM = "seq-mean-token-sum-norm"


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.long)])
def test_what_is_said_to_type_is_taken(every: int) -> None:
    """Each answer's values stand in a run of an algorithm that has the setting."""
    wrong, seen = [], set()
    for meaning in NAMED[::every]:
        for words in words_of(meaning):
            if not is_complete(words) or tuple(words) in seen or not words:
                continue
            seen.add(tuple(words))
            name = next((word.partition("=")[0] for word in words if "." in word.partition("=")[0]), "")
            fitting = [each for each in ALGORITHMS if not name or has_setting(guide(each).node, name)] or ["grpo"]
            found = try_resolve(needed(words, fitting[0])).problems
            wrong += [f"{next(iter(meaning.names.values()))[0]}: {words}: {problem}" for problem in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.long)])
def test_every_name_is_answered(every: int) -> None:
    fallbacks = []
    for name in [*table().named][::every]:
        (answer,) = answers([f"{name}=1"])
        here = has_setting(guide().node, name) or name in guide().holders
        if not here and ("it may be" in answer.problem.fix or "it has" in answer.problem.fix):
            fallbacks.append(str(answer.problem))
        assert all(known(word) for word in answer.overrides), answer
    assert not fallbacks


def test_nothing_of_it_is_loaded_for_arguments_that_are_right() -> None:
    table.cache_clear()
    assert try_resolve(["algorithm=grpo", *BASE, "sampler.n=4"]).problems == []
    assert table.cache_info().currsize == 0


# ---- what is said

EXACT = [
    ("num_generations=8", "num_generations: is TRL's name; use sampler.n=8"),
    ("trainer.num_train_epochs=3.0", "trainer.num_train_epochs: num_train_epochs is Hugging Face's name;"
                                     " use trainer.total_epochs=3.0"),
    ("max_steps=-1", "max_steps: is Hugging Face's name; leave it out"),
    ("torch_dtype=torch.bfloat16", "torch_dtype: is Hugging Face's name; use model.dtype=bfloat16"),
    ("torch_dtype=float16", "torch_dtype: is Hugging Face's name; there is no such number format;"
                            " use model.dtype=float32 or bfloat16"),
    ("epsilon=0.1", "epsilon: is TRL's name; use algorithm.clip_ratio_low=0.1 algorithm.clip_ratio_high=0.1"
                    " (both sides of the range)"),
    ("model_name_or_path=~/x", "model_name_or_path: is TRL's name; use model=hf 'model.path=\"~/x\"'"),
    ("adam_beta2=0.95", "adam_beta2: is Hugging Face's name; use 'optim.betas=[0.9,0.95]'"),  # quoted for every shell
    ("dataset=alpaca_en_demo", "dataset: is LLaMA-Factory's name; use data=files data.train_files=FILE"),
    ("dataset=a/train.TSV", "dataset: is LLaMA-Factory's name; use data=files data.train_files=a/train.TSV"),
    ("dataset=train.csv.gz", "dataset: is LLaMA-Factory's name; use data=files data.train_files=train.csv.gz"),
    ("dataset=math_10k", "dataset: is LLaMA-Factory's name; did you mean data=math?"),
    ("actor_rollout_ref.actor.ppo_micro_batch_size=8", "actor_rollout_ref.actor.ppo_micro_batch_size: is verl's name;"
     " use trainer.micro_batch_size_per_gpu=ROWS (ours is of one process, theirs of all)"),
    # options of what has no counterpart, and values that say more than the name
    ("actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space=4",
     "actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space: actor_rollout_ref.rollout.engine_kwargs is verl's name;"
     " rlrun sets that up for vLLM by itself; leave it out"),
    ("reward_funcs=my.rewards.score", "reward_funcs: is TRL's name; use reward=python reward.path=my/rewards.py"
     " reward.name=score (a function of your own has verl's signature:"
     " compute_score(data_source, solution_str, ground_truth))"),
    # only a known group before a name leaves its meaning
    ("rollout.temperature=0.7", "rollout.temperature: actor_rollout_ref.rollout.temperature is verl's name;"
                                " use sampler.temperature=0.7"),
    ("eval.sampling.temperature=0.7", "eval.sampling.temperature: no group or setting 'eval';"
                                      " did you mean sampler.temperature?"),
    # ours, without a group or with another one, or of another choice
    ("algorithm.clip_ratio=0.2", "algorithm.clip_ratio: actor_rollout_ref.actor.clip_ratio is verl's name;"
     " use algorithm.clip_ratio_low=0.2 algorithm.clip_ratio_high=0.2 (both sides of the range)"),
    ("critic.lr=1e-3", "critic.lr: Critic has no setting 'lr'; use critic.optim.lr=1e-3"),
    ("algorithm.gamma=0.9", "algorithm.gamma: GRPO has no setting 'gamma';"
                            " algorithm.gamma is a setting of algorithm=ppo"),
    # what a name means depends on the algorithm
    ("dpo: beta=0.04", "beta: is TRL's name; use algorithm.beta=0.04"),
    ("beta=0.04", "beta: is TRL's name; use algorithm.kl_loss_coef=0.04 (weight of the KL loss)"),
    ("ppo: beta=0.04", "beta: is TRL's name; use algorithm.kl_coef=0.04 (subtracted from the reward)"),
    ("sft: per_device_train_batch_size=4", "per_device_train_batch_size: is Hugging Face's name; use"
     " data.train_batch_size=ROWS trainer.micro_batch_size_per_gpu=4 (data.train_batch_size is of a whole step:"
     " theirs x processes x gradient_accumulation_steps; for GRPO / num_generations)"),
    # options are settings with dashes
    ("--learning_rate 5e-6", "--learning_rate: is Hugging Face's name; use optim.lr=5e-6"),
    ("--bf16", "--bf16: is Hugging Face's name; use engine.mixed_precision=true"
               " (bfloat16 weights are model.dtype=bfloat16)"),
    ("--top-k -1", "--top-k: is Hugging Face's name; use sampler.top_k=-1"),
    ("-lr 2", "-lr: no group or setting 'lr'; use optim.lr=2"),
    ("--sampler.n=8", "--sampler.n: arguments have no dashes; use sampler.n=8"),
    ("--dryrun", "--dryrun: no such option; did you mean --dry-run?"),
    ("--config_dir", "--config_dir: no such option; did you mean --config-dir?"),
    ("num_generation=8", "num_generation: no group or setting 'num_generation'; did you mean num_generations?"
                         " use sampler.n=8"),
]  # fmt: skip


@pytest.mark.parametrize(("word", "expected"), EXACT, ids=[word for word, _ in EXACT])
def test_a_name_is_answered_with_what_to_type(word: str, expected: str) -> None:
    algorithm, _, typed = word.rpartition(": ")
    assert [str(answer.problem) for answer in answers(typed.split(), algorithm or "grpo")] == [expected]


@pytest.mark.parametrize("table", names.LEAST)
@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.long)])
def test_names_that_people_type_are_answered_with_the_right_one(every: int, table: str, tmp_path: Path) -> None:
    """The tables of tests/cases."""
    with site(tmp_path / "here", names.SITE) as where:
        chosen = names.names(table)[::every]
        left = [name.typed for name in chosen if not name.answered(launches.in_this_process(where, name.words))]
    assert len(left) <= len(chosen) * (1 - names.LEAST[table]), left


def test_what_is_wrong_for_a_run_is_not_suggested_for_it() -> None:
    (problem,) = try_resolve(["algorithm=sft", "model=tiny", "data=reverse", "entropy_coef=0"]).problems
    assert problem.fix.endswith("algorithm=dapo, dr_grpo, gigpo, grpo, ...")
    found = try_resolve(["model=tiny", "data=reverse", "sampler.n=4", "beta=0.1", "--lora_r", "16"])
    assert [problem.fix for problem in found.problems[:2]] == [
        "use algorithm.beta=0.1 (of algorithm=dpo, gspo_selfplay)",
        "use model.lora_rank=16 model.lora_alpha=32 (with TRL's model.lora_alpha=32 where none is typed)",
    ]  # fmt: skip
    assert [problem.where for problem in found.problems[2:]] == ["algorithm"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("data=files", "data.train_files=SFT.jsonl"), "data.train_files"),  # the stand-in's class is named SFT
        (("data=reverse", "trainer.best_metric=SFT"), "trainer.best_metric"),
    ],
)
def test_a_text_that_holds_a_class_name_hides_nothing(words: tuple[str, ...], expected: str) -> None:
    found = plan(["algorithm=foo", "model=tiny", *words]).results
    assert expected in [result.subject for result in found if result.level == "FAIL"]


def test_the_options_are_those_of_train_and_plan() -> None:
    commands = [load(entry) for entry in COMMANDS if entry.name in ("train", "plan")]
    names = {name for command in commands for option in command.params for name in option.opts if name.startswith("--")}
    assert names | {"--help"} == set(OPTIONS)


# ---- misspelt


def misspelt() -> Iterator[tuple[str, str]]:
    """Settings of a run with two letters exchanged, one left out or doubled, and without their group."""
    here = [name for name in guide().holders if has_setting(guide().node, name) and len(name.rpartition(".")[2]) > 5]
    for place, name in enumerate(here):
        top, _, leaf = name.rpartition(".")
        middle = len(leaf) // 2
        wrong = (
            leaf[:middle] + leaf[middle + 1] + leaf[middle] + leaf[middle + 2 :], leaf[:middle] + leaf[middle + 1 :],
            leaf[:middle] + leaf[middle] + leaf[middle:], leaf.replace("_", "-"), leaf.upper(),
        )[place % 5]  # fmt: skip
        if wrong != leaf:
            yield f"{top}.{wrong}", name
            if without_style(wrong) not in table().named:  # a name of another project
                yield wrong, name


def test_misspelt_settings_are_found_with_and_without_their_group() -> None:
    cases = list(misspelt())
    missed = [(word, meant, answers([f"{word}=7"])[0].overrides) for word, meant in cases]
    missed = [each for each in missed if each[2] != (f"{each[1]}=7",)]
    same_leaf = [
        each for each in missed if each[2] and each[2][0].rpartition(".")[2] == f"{each[1].rpartition('.')[2]}=7"
    ]
    assert len(cases) >= 100 and len(missed) - len(same_leaf) <= len(cases) // 50, missed


def test_nothing_is_suggested_that_was_typed() -> None:
    assert suggest("solution", ["solution", "answer"]) == "it may be answer, solution"


# ---- the pages


PAGES = runpy.run_path(str(ROOT / "docs" / "names_pages.py"))


def test_each_project_has_a_page_and_it_is_what_the_table_says() -> None:
    pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "coming-from").glob("*.md")}
    assert pages == {name: PAGES["page"](of) for name, of in PAGES["pages"]().items()}, "make settings writes them"


@pytest.mark.parametrize("project", table().projects.values(), ids=lambda project: project.key)
def test_the_command_of_a_page_is_right(project: Project) -> None:
    words = shlex.split(project.ours.replace("\\\n", " "))
    assert words[:2] == ["rlrun", "train"]
    resolve(words[2:])


def test_all_of_a_command_is_taken_together() -> None:
    found = try_resolve(["--num_generations", "8", "algorithm=grpo", "model=tiny", "data=reverse", "lr=1e-3"])
    assert [str(problem) for problem in found.problems] == [
        "--num_generations: is TRL's name; use sampler.n=8", "lr: no group or setting 'lr'; use optim.lr=1e-3",
    ]  # fmt: skip
    assert found.run and found.run.sampler.n == 8 and found.run.optim.lr == 1e-3
    assert is_complete(["sampler.n=8"]) and not is_complete(["optim.lr_warmup_steps=STEPS"])
