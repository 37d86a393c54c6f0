"""The engine verl 0.9.1: a program in an environment of its own, started with arguments made from a RunSpec.

This file decides what verl can train; `words` makes its arguments, `driver` runs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from launcher.config.names import verl
from launcher.config.names.table import table
from launcher.core.check_result import CheckResult
from launcher.core.overrides import argument, key_of
from launcher.core.problems import Problem, conflict, path_repr
from launcher.core.settings import Names, settings
from launcher.data.files import Files
from launcher.engines.verl import memory, saved, words
from launcher.engines.verl.passed_on import PROJECT, VerlNames
from launcher.engines.verl.sampler import VerlSampler
from launcher.models.pretrained import Pretrained
from launcher.rewards.model import RewardModel
from launcher.spec.engine import Engine, Plan, Process, RunFacts
from launcher.spec.memory import Memory
from launcher.spec.run import Optim, RunSpec

TAKEN = {
    "trainer.resume_mode": "leave it out; rlrun train --resume RUN goes on",
    "trainer.resume_from_path": "use engine.resume_from_path",
    "trainer.default_local_dir": "leave it out; trainer.run_root is the folder of runs",
    "trainer.validation_data_dir": "leave it out; answers are in the run's folder",
    "trainer.rollout_data_dir": "leave it out; trainer.log_groups logs answers",
    "trainer.logger": "use trainer.logger without engine.extra",
    "data.train_files": "use data.train_files without engine.extra",
    "data.val_files": "use data.val_files without engine.extra",
}
"""Arguments that a run sets for itself, and what to use instead."""


@settings
class Verl(Engine):
    """Trains with verl 0.9.1 (FSDP or Megatron; vLLM or SGLang for sampling), as a program in its own environment."""

    python: str | None = None
    """Python of the environment that verl is installed in, as a path on the machine that trains; by default the one
    that runs rlrun."""
    strategy: Literal["fsdp", "fsdp2", "megatron"] = "fsdp"
    """How weights, gradients and optimizer states are sharded over the GPUs."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of verl's processes."""
    resume_from_path: str | None = None
    """A checkpoint that verl wrote outside of rlrun, `.../global_step_100`: the run begins with its weights, optimizer
    and step."""
    extra: Names = ()
    """Further arguments for verl, in its own words, such as `actor_rollout_ref.rollout.enable_chunked_prefill=false`;
    they are checked against verl's config, and come last. Typed without `engine.extra=` they come here, too."""

    computes = frozenset({"reference", "critic", "old"})
    reads = frozenset({"answers", "prompts"})
    opens_model = False
    splits_prompts = False
    splits_length = False
    writes_by_turn = True
    validates_whole_batches = True
    equal_micro_batches = True
    picks_tokenizer = True
    names = VerlNames()

    @property
    def renames_layers(self) -> bool:
        return self.strategy == "megatron"

    def problems(self, run: RunSpec) -> list[Problem]:
        if found := super().problems(run):
            return found  # verl has no such algorithm: the rest would be about another one
        return [*self._unknown_parts(run), *_unread_settings(run), *_unknown_fields(run), *self._taken_arguments()]

    def _taken_arguments(self) -> Iterator[Problem]:
        """Arguments that would take a run's files from where rlrun looks for them."""
        for typed in self.extra:
            key = key_of(typed)
            if fix := TAKEN.get(key):
                yield Problem("engine.extra", f"{key} is set by rlrun", fix, "conflicting-settings")
        path = self.resume_from_path
        if path is not None and not saved.is_checkpoint_name(path):
            got = f"{path_repr(path)} does not end with global_step_N, as verl's checkpoints do"
            yield Problem("engine.resume_from_path", got, "use the folder of one step")

    def _unknown_parts(self, run: RunSpec) -> Iterator[Problem]:
        """Algorithms, models, rewards and hardware that verl cannot use."""
        if words.own_settings(run) is None:
            got = f"verl computes its own losses and does not know {type(run.algorithm).__name__}"
            yield Problem("engine", got, "use engine=torch", "not-supported", ("algorithm",))
        if not isinstance(run.sampler, VerlSampler):
            fix = "use sampler=verl, or engine=torch"
            yield conflict("sampler", "verl samples with servers of its own", fix, "engine")
        if run.environment.several_turns:
            got = "verl has agent loops of its own, which know no environment of this kind"
            fix = "use engine=torch, or environment=single and verl's own actor_rollout_ref.rollout.multi_turn"
            yield conflict("environment", got, fix, "engine")
        if not isinstance(run.data, Files):
            got = "verl reads rows of files, and these are made as they are asked for"
            yield conflict("data", got, "use data=FILE, or engine=torch", "engine")
        if not isinstance(run.model, Pretrained):
            got = "verl loads a model from a folder or a hub, and this one is made by the torch engine"
            yield conflict("model", got, "use model=FOLDER or a hub's, or engine=torch", "engine")
        if run.hardware.is_cpu and words.PLUGINS not in self.env:
            got = "verl 0.9.1 has no platform for CPUs"
            yield conflict("hardware", got, "use hardware=gpu, or engine=torch", "engine", "hardware.device")
        if len([*run.reward.leaves()]) > 1 and any(isinstance(leaf, RewardModel) for leaf in run.reward.leaves()):
            got = "verl scores with rules or with a reward model, not with both"
            yield conflict("reward", got, "use reward=model alone, or engine=torch", "engine")

    def command(self, run: RunSpec, folder: Path, start: int = 0) -> list[str]:
        """verl's program and its arguments, as one would type them in its environment."""
        python = [self.python or sys.executable, "-u"]
        if words.module(run) == words.MODULES["sft"]:
            nproc = f"--nproc-per-node={run.hardware.processes_per_node}"
            python += ["-m", "torch.distributed.run", "--standalone", nproc]
        return [*python, "-m", words.module(run), *words.arguments(run, self, folder, start)]

    def plan(self, run: RunSpec, folder: Path, start: int = 0) -> Plan:
        """One process, which starts verl and reads what it writes; verl starts the others through Ray or torchrun."""
        driver = (sys.executable, "-P", "-m", "launcher.engines.verl.driver", str(folder), str(start))
        env = {**self.env, "VERL_FILE_LOGGER_PATH": str(words.log_file(folder))}
        if words.module(run) == words.SFT_ON_RAY and run.cluster.remote_address:
            env["RAY_ADDRESS"] = run.cluster.remote_address  # verl's SFT has no argument for the address
        return Plan((Process(0, (*driver, *self.command(run, folder, start)), env),))

    def with_absolute_paths(self) -> Self:
        path = self.resume_from_path
        return replace(self, extra=tuple(map(_with_absolute_path, self.extra)),
                       resume_from_path=path and os.path.abspath(os.path.expanduser(path)))  # fmt: skip

    def memory(self, run: RunSpec) -> Memory | None:
        return memory.memory(run, self)

    def without_template(self) -> Literal["fails", "another"]:
        has_template = any(key_of(word).endswith("model.custom_chat_template") for word in self.extra)
        return "another" if has_template else "fails"

    def check(self, run: RunSpec, facts: RunFacts) -> Iterable[CheckResult]:
        from launcher.engines.verl import checks  # noqa: PLC0415  # it loads Hydra, which training does not need

        return checks.check(self, run, facts, self.python or sys.executable)

    def write_policy(self, checkpoint: Path, target: Path) -> None:
        saved.merge(self.python or sys.executable, checkpoint, target)

    def recover(self, folder: Path) -> list[int]:
        theirs = reversed(saved.folders(folder / words.WORK / words.SAVED))
        return [step for step, _ in theirs if saved.take_over(folder, step)]


def _with_absolute_path(word: str) -> str:
    """The argument with the absolute path of a file or folder in the working folder: verl runs in another one."""
    typed, _, value = word.partition("=")
    plain = value.strip("'\"")
    is_here = typed.endswith("path") and plain and not os.path.isabs(plain) and os.path.exists(plain)
    return argument(typed, os.path.abspath(plain)) if is_here else word


def _unread_settings(run: RunSpec) -> Iterator[Problem]:
    """Values that verl has no setting for, and settings of an algorithm that it does not have."""
    for row in verl.read()["only"]:
        setting, kind = row["ours"], row.get("kind", run.algorithm.data)
        is_read = kind == run.algorithm.data and (run.has_critic or not setting.startswith("critic."))
        with suppress(KeyError):  # the field of another algorithm
            if is_read and (value := words.value_of(run, setting)) not in row["allowed"]:
                yield conflict(setting, row["got"].format(value), row["fix"], "engine")
    if run.engine.strategy == "megatron" and run.optim.adam_eps != Optim().adam_eps:  # type: ignore[attr-defined]
        key = f"+{words.ACTOR}.optim.override_optimizer_config.adam_eps={run.optim.adam_eps:g}"
        got = "Megatron's optimizer takes it in a setting of its own"
        yield conflict("optim.adam_eps", got, f"leave it out, and use {key}", "engine.strategy")


def _unknown_fields(run: RunSpec) -> Iterator[Problem]:
    """Settings of an algorithm that the table does not have, where they differ from their defaults."""
    known = {setting for row in table().meanings if row.ppo or row.sft or PROJECT in row.names for setting in row.ours}
    known |= {row["ours"] for row in verl.read()["only"]}
    for field in fields(run.algorithm):  # type: ignore[arg-type]
        setting = f"algorithm.{field.name}"
        if setting not in known and words.value_of(run, setting) != field.default:
            yield conflict(setting, "verl has no setting for it", "leave it out, or use engine=torch", "engine")
