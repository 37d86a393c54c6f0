"""`rlrun import`: launch scripts of verl become recipes, which say what changed and are planned; what verl composes of
such a run is what it composes of the script's own words, key by key."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from launcher.cli.main import app
from launcher.config import recipe as recipes
from launcher.config.resolve import resolve
from launcher.core.overrides import key_of
from launcher.core.problems import Problems
from launcher.engines.verl.config.compose import compose
from launcher.engines.verl.passed_on import as_passed_on
from launcher.tools.importing.launch import ImportedLaunch, config_of, differing, program_of
from launcher.tools.importing.script import ImportedScript, import_script, recipe, recipe_paths

CASES = Path(__file__).parents[1] / "sandbox" / "cases"
GRPO = """\
set -x
export VLLM_USE_V1=1
MODEL=${1:-Qwen/Qwen3-0.6B}
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=train.parquet data.val_files=val.parquet \\
    data.train_batch_size=128 data.max_prompt_length=512 data.max_response_length=1024 \\
    data.filter_overlong_prompts=True data.truncation='error' \\
    actor_rollout_ref.model.path=$MODEL actor_rollout_ref.model.use_remove_padding=True \\
    actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \\
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=5 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8 \\
    trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.total_epochs=15 \\
    trainer.project_name='gsm8k' trainer.experiment_name="grpo_$(date +%m%d)" $@
"""
SFT = "torchrun --nnodes=1 --nproc_per_node=4 -m verl.trainer.sft_trainer model.path=a/b data.train_files=a.parquet"
"""A launch that is read in a tenth of the time."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def of_text(folder: Path, text: str, *arguments: str) -> ImportedScript:
    script = folder / "run.sh"
    script.write_text(text)
    return import_script(script, arguments)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["import", *arguments])


@pytest.fixture(scope="module")
def grpo(tmp_path_factory: pytest.TempPathFactory) -> ImportedLaunch:
    """What `GRPO` becomes."""
    (made,) = of_text(tmp_path_factory.mktemp("grpo"), GRPO).launches
    return made


def test_a_launch_becomes_the_run_in_our_words(grpo: ImportedLaunch) -> None:
    run = resolve(grpo.arguments)
    assert not grpo.problems and run == grpo.run
    assert type(run.algorithm).__name__ == "GRPO" and run.engine.extra == (  # type: ignore[attr-defined]
        "actor_rollout_ref.model.use_remove_padding=True",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8",
        "data.seed=null",
    )
    assert run.engine.env == {"VLLM_USE_V1": "1"}  # type: ignore[attr-defined]
    assert (run.sampler.n, run.trainer.ppo_mini_batch_size, run.trainer.micro_batch_size_per_gpu) == (5, 64, 8)
    assert (run.data.train_batch_size, run.data.truncation, run.hardware.n_gpus_per_node) == (128, "filter", 8)
    assert (run.trainer.project_name, run.trainer.experiment_name) == ("gsm8k", "grpo")


def test_defaults_of_verl_that_are_not_ours_are_named(grpo: ImportedLaunch) -> None:
    named = {"algorithm.clip_ratio_c=3.0", "algorithm.loss_agg_mode=token-mean", "sampler.tensor_parallel_size=2"}
    assert named | {"model.enable_gradient_checkpointing=true", "reward=auto"} <= {*grpo.arguments}
    lines = [change.line for change in grpo.changes]
    assert "actor_rollout_ref.actor.clip_ratio_c=3.0: verl's default, said as algorithm.clip_ratio_c=3.0" in lines
    assert "actor_rollout_ref.rollout.n=5: taken as sampler.n=5" in lines
    assert not [word for word in grpo.arguments if word.startswith(("algorithm.clip_ratio_low", "optim.betas"))]


def test_what_the_script_is_given_and_what_only_running_could_tell(folder: Path) -> None:
    """One launch on several machines, with a secret."""
    secret = "c0ffee" * 6
    text = GRPO.replace(
        "n_gpus_per_node=8 trainer.nnodes=1", "n_gpus_per_node=$(nvidia-smi -L | wc -l) trainer.nnodes=4"
    )
    arguments = ("Qwen/Qwen3-4B", "actor_rollout_ref.rollout.temperature=0.7")
    found = of_text(folder, f"export WANDB_API_KEY={secret} use_auth_token={secret}\n{text}", *arguments)
    (made,) = found.launches
    assert made.run and (made.run.model.label, made.run.sampler.temperature) == ("Qwen3-4B", 0.7)
    assert made.run.hardware.nnodes == 4 and "cluster=ray" in made.arguments
    assert any("trainer.n_gpus_per_node=" in note and "is left out" in note for note in made.notes)
    assert any("date +%m%d" in note for note in found.notes)
    assert secret not in " ".join(made.arguments) and any("WANDB_API_KEY" in note for note in made.notes)
    shutil.copy(CASES / "sft_torchrun.sh", folder)
    with pytest.raises(Problems, match="the script ended here before it started anything"):
        import_script(folder / "sft_torchrun.sh")


def test_what_cannot_be_taken_over_is_refused_with_its_line(folder: Path) -> None:
    """And stands in the recipe all the same."""
    wrong = GRPO.replace("rollout.n=5", "rollout.nn=5").replace("$@", "template=chat")
    made, other = of_text(folder, f"{wrong}python3 -m verl.trainer.main_eval data.path=a.parquet\n").launches
    lines = "\n".join(map(str, [*made.problems, *other.problems]))
    for line in (
        "4: actor_rollout_ref.rollout.nn: verl has no such key; did you mean",
        "18: verl.trainer.main_eval is none of the programs of verl that are started here",
    ):
        assert f"{folder}/run.sh:{line}" in lines
    assert any("template" in str(problem) for problem in made.problems)
    assert "template=chat" in recipe(made, "run.sh")


def test_recipes_are_written_and_read_again(folder: Path, grpo: ImportedLaunch) -> None:
    (folder / "run.sh").write_text(GRPO)
    result = call("run.sh", "-o", "made.sh")
    assert result.exit_code == 1, result.output  # the rows are not there
    assert "actor_rollout_ref.rollout.n=5: taken as sampler.n=5" in result.output and "train.parquet" in result.output
    (command,) = recipes.commands(folder / "made.sh")
    assert command.passes_on and resolve(command.request.texts) == grpo.run
    (folder / "run.sh").write_text(SFT)
    again = call("run.sh", "-o", "made.sh")
    assert again.exit_code == 2 and "made.sh: is there already; use -o FILE.sh, or delete it" in again.output


def test_several_launches_are_several_recipes(folder: Path) -> None:
    (folder / "run.sh").write_text(f"for lr in 1e-6 5e-7; do\n{SFT} optim.lr=$lr\ndone\n")
    result = call("run.sh", "--json")
    node = json.loads(result.output)
    assert [one["path"] for one in node["recipes"]] == ["rlrun-run.sh", "rlrun-run-2.sh"]
    assert [[word for word in one["arguments"] if word.startswith("optim.lr=")] for one in node["recipes"]] == [
        ["optim.lr=1e-6"], ["optim.lr=5e-7"]
    ]  # fmt: skip
    one = json.loads(call("run.sh", "--run", "2", "-o", "two.sh", "--json").output)
    assert "optim.lr=5e-7" in one["recipes"][0]["arguments"] and len(one["recipes"]) == 1


def test_variables_of_the_shell_are_given(folder: Path) -> None:
    script = folder / "run.sh"
    script.write_text(f"set -u\n{SFT.replace('a/b', '$MODELS/x')}")
    result = call("run.sh")
    assert result.exit_code == 2
    assert "MODELS is not set, and set -u ends the script there; use --env MODELS=VALUE" in " ".join(
        result.output.split()
    )
    assert call("run.sh", "--env", "MODELS=/m", "--env", "OTHER=a=b", "-o", "made.sh").exit_code == 1
    assert "model.path=/m/x" in (folder / "made.sh").read_text()
    for wrong in ("MODELS", "2=x", "A B=x"):
        result = call("run.sh", "--env", wrong)
        assert result.exit_code == 2 and "is no variable with its value; use --env NAME=VALUE" in result.output
    with pytest.raises(Problems, match="ends the script there; give its own arguments after --"):
        of_text(folder, "python3 -m verl.trainer.main_ppo x=${1:?a path}\n")


def test_why_no_launch_is_found_is_shown(folder: Path) -> None:
    (folder / "run.sh").write_text(f"D=$(hostname)\n. ./other.sh\nif [ ! -d /no/rows ]; then\n  exit 3\nfi\n{GRPO}")
    result = call("run.sh")
    assert result.exit_code == 2
    lines = [line.partition("run.sh")[2] for line in result.output.splitlines()]
    assert lines[0].startswith(":4: the script ended here before it started anything (exit code 3); use --env NAME=")
    assert lines[1].startswith(":2: ./other.sh: No such file or directory: an error of bash here")


def test_what_is_no_script_ends_with_2(folder: Path) -> None:
    (folder / "other.sh").write_text("echo hello\n")
    assert call("missing.sh").exit_code == 2
    assert call("other.sh").exit_code == 2
    (folder / "other.sh").write_text("python3 -m verl.trainer.main_generation data.path=a.parquet\n")
    result = call("other.sh")
    assert result.exit_code == 1 and "main_generation is none of the programs of verl" in result.output
    assert recipe_paths(Path("a/b.sh"), 0) == []
    assert recipe_paths(Path("a/b.sh"), 2) == [Path("a/b.sh"), Path("a/b-2.sh")]


# ---- key by key

A, R, M = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
ROWS = "data.train_files=train.parquet data.val_files=val.parquet"
WORDS = (
    f"algorithm.adv_estimator=grpo {ROWS} {M}.path=a/b {R}.name=vllm {R}.n=5 trainer.n_gpus_per_node=8 "
    f"{A}.ppo_micro_batch_size_per_gpu=4 {R}.log_prob_micro_batch_size_per_gpu=8"
)
OF_PPO = (
    f"{ROWS} {M}.path=a/b critic.model.path=a/b {R}.name=sglang "
    "critic.ppo_micro_batch_size_per_gpu=2 critic.optim.lr=2e-5"
)
RL = "verl.trainer.main_ppo"
SCRIPTS = {
    "grpo": f"{RL} {WORDS} {A}.use_kl_loss=True {A}.kl_loss_coef=0.01 {A}.kl_loss_type=mse",
    "ppo with kl": f"{RL} {OF_PPO} algorithm.use_kl_in_reward=True algorithm.kl_ctrl.kl_coef=0.05 "
                   "algorithm.kl_penalty=low_var_kl algorithm.kl_ctrl.type=adaptive critic.cliprange_value=0.2",
    "all defaults": f"{RL} algorithm.adv_estimator=grpo",
    "dapo": f"{RL} {WORDS} algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc "
            "reward.reward_manager.name=dapo +reward.reward_kwargs.overlong_buffer_cfg.enable=True "
            "+reward.reward_kwargs.overlong_buffer_cfg.len=512 "
            "+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0 "
            "+reward.reward_kwargs.max_resp_len=1024 data.max_response_length=1024",
    "gspo, clipped higher, dynamic, offloaded, validated, in turns":
        f"{RL} {WORDS} {A}.policy_loss.loss_mode=gspo {A}.clip_ratio_high=4e-4 {A}.clip_ratio_low=3e-4 "
        f"{A}.loss_agg_mode=seq-mean-token-mean {A}.clip_ratio_c=10.0 "
        f"{A}.use_dynamic_bsz=True {A}.ppo_max_token_len_per_gpu=24000 "
        f"{R}.log_prob_use_dynamic_bsz=True {R}.log_prob_max_token_len_per_gpu=48000 "
        f"{A}.fsdp_config.param_offload=True {M}.lora_rank=32 {M}.lora_alpha=64 {A}.strategy=fsdp2 "
        f"{A}.fsdp_config.optimizer_offload=True {A}.ulysses_sequence_parallel_size=2 "
        f"{R}.val_kwargs.do_sample=True {R}.val_kwargs.temperature=0.6 {R}.val_kwargs.n=4 {R}.val_kwargs.top_p=0.7 "
        "trainer.val_before_train=False trainer.test_freq=5 "
        f"{R}.multi_turn.enable=True {R}.multi_turn.max_assistant_turns=4 {R}.mode=async",
    # verl's servers read no do_sample, so its default must not make validation greedy
    "temperature of validation": f"{RL} {WORDS} {R}.val_kwargs.temperature=0.9 {R}.val_kwargs.n=8",
    "temperature of validation, not sampled": f"{RL} {WORDS} {R}.val_kwargs.temperature=0.9 {R}.val_kwargs.n=8 "
        f"{R}.val_kwargs.do_sample=False",
    "reward model": f"{RL} {WORDS} reward.reward_model.enable=True reward.reward_model.model_path=r/m "
                    "reward.reward_model.rollout.name=sglang reward.reward_model.rollout.gpu_memory_utilization=0.4",
    "older keys": f"{RL} {WORDS} custom_reward_function.path=my.py reward_model.reward_manager=naive "
                  "critic.model.fsdp_config.param_offload=True trainer.val_generations_to_log_to_wandb=4",
    "megatron": f"{RL} --config-path=config --config-name='ppo_megatron_trainer.yaml' {WORDS} "
                f"{A}.megatron.tensor_model_parallel_size=4 {A}.megatron.param_offload=True",
    "sft with lora": f"verl.trainer.sft_trainer {ROWS} model.path=a/b model.lora_rank=32 model.lora_alpha=64 "
                     "optim.lr_warmup_steps_ratio=0.1 optim.lr_scheduler_type=cosine data.use_dynamic_bsz=False",
    "sft of megatron": f"verl.trainer.sft_trainer {ROWS} model.path=a/b engine=megatron optim=megatron "
                       "engine.tensor_model_parallel_size=2 optim.lr_decay_style=cosine",
    "a reward model behind a function": f"{RL} {WORDS} reward.reward_model.enable=True "
        "reward.reward_model.model_path=r/m reward.reward_model.rollout.name=vllm "
        "reward.custom_reward_function.path=my.py reward.custom_reward_function.name=score",
    "a config of its own": f"{RL} --config-path=$PWD/config --config-name=own {WORDS}",
}  # fmt: skip
OWN = """hydra: {searchpath: [file://verl/trainer/config]}
defaults: [ppo_trainer, _self_]
data: {max_prompt_length: 1000, train_batch_size: 256}
actor_rollout_ref: {rollout: {multi_turn: {enable: true, max_assistant_turns: 5}}}
"""


@pytest.fixture
def configs(folder: Path) -> Path:
    (folder / "my.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info=None, **more): return 1.0\n"
    )
    (folder / "config").mkdir()
    (folder / "config" / "own.yaml").write_text(OWN)
    return folder


WIDE = ("ppo with kl", "gspo, clipped higher, dynamic, offloaded, validated, in turns", "sft with lora")
"""Those that between them have most of the keys."""


@pytest.mark.parametrize("names", [WIDE, pytest.param([*SCRIPTS], marks=pytest.mark.long)], ids=["wide", "all"])
def test_the_config_is_the_scripts(configs: Path, names: tuple[str, ...]) -> None:
    (configs / "run.sh").write_text("".join(f"python3 -m {SCRIPTS[name]}\n" for name in names))
    launches = import_script(configs / "run.sh").launches
    wrong = {}
    for name, made in zip(names, launches, strict=True):
        assert not made.problems, (name, made.problems)
        run = resolve(made.arguments)
        words = [word for word in made.launch.words if not word.startswith("--")]
        more = ["model_engine=megatron"] if name == "megatron" else []
        more += [word for word in made.launch.words if "own" in name and word.startswith("--")]
        now = as_passed_on(words, program_of(run), more)[0]
        given = any(key_of(word) == f"{R}.name" for word in now) or name.startswith("sft")
        wanted = compose([*more, *([] if given else [f"{R}.name=vllm"]), *now], program_of(run)).config
        wrong[name] = [*differing(wanted, config_of(run))]
    assert {name: keys for name, keys in wrong.items() if keys} == {}


def test_a_training_backend_that_is_not_taken_is_refused(configs: Path) -> None:
    (configs / "run.sh").write_text(f"python3 -m verl.trainer.sft_trainer {ROWS} model.path=a/b engine=veomni\n")
    (made,) = import_script(configs / "run.sh").launches
    assert [problem.got for problem in made.problems if "backend veomni" in problem.got]


def test_a_config_that_the_script_writes_is_read(configs: Path) -> None:
    """And `+trainer.val_before_train=False` of older scripts, which verl 0.9.1 refuses for its plus, is set."""
    heredoc = "mkdir -p made a\ncat > made/mine.yaml <<EOF\n" + OWN + "trainer: {save_freq: $(date +%d)}\nEOF\n"
    older = ["trainer.val_before_train=False", "data.shuffle=False", "data.seed=7"]
    words = f"-cp $PWD/a -cn ../made/mine.yaml {WORDS} {' '.join(f'+{word}' for word in older)}"
    (configs / "run.sh").write_text(f"{heredoc}python3 -m {RL} {words}\n")
    (made,) = import_script(configs / "run.sh").launches
    assert not made.problems, made.problems
    given = [f"--config-path={configs / 'config'}", "--config-name=own", *WORDS.split(), *older]
    wanted, found = compose(given, "ppo").config, config_of(resolve(made.arguments))
    wanted["actor_rollout_ref"]["rollout"]["name"] = "vllm"
    assert [*differing(wanted, found)] == []
    assert (found["trainer"]["val_before_train"], found["data"]["shuffle"], found["data"]["seed"]) == (False, False, 7)
    assert any(each.before.startswith("+") and "has this key" in each.message for each in made.changes)
    assert [note.partition(": ")[2] for note in made.notes] == [
        "mine.yaml: trainer: {save_freq: {date +%d}} is left out; only running the script tells {date +%d}"
    ]
    assert not (configs / "made").exists()
