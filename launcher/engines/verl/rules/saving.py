"""What is saved and resumed from, of RL and SFT alike. Numbers are lines of verl 0.9.1."""

from __future__ import annotations

import re
from typing import Any

from launcher.core.problems import short_repr
from launcher.engines.verl.rules.facts import LaunchFacts, Results, RuleResult, fails, warns
from launcher.engines.verl.rules.sections import not_one_of
from launcher.engines.verl.rules.settings import ACTOR, RlSizes, at, engine_of, is_set

CONTENTS = ("model", "optimizer", "extra", "hf_model")
WRITTEN = ("trainer.default_local_dir", "trainer.rollout_data_dir", "trainer.validation_data_dir")
"""Folders that verl makes (fs.py:299, trainer_base.py:1228)."""
_STEP = re.compile(r"global_step_\d+$")


def saving(run: RlSizes, facts: LaunchFacts) -> Results:
    path, where = run("trainer.resume_from_path"), "trainer.resume_from_path"
    if run("trainer.resume_mode") == "resume_path" and not _STEP.search(str(path)):  # trainer_base.py:866-876
        yield fails(where, short_repr(path) if is_set(path) else "not set", _step_folder(path))
    if run("trainer.resume_mode") == "auto" and path not in (None, "", "null"):  # trainer_base.py:856; SFT reads it
        got = f"auto, which looks in default_local_dir alone, and not for resume_from_path={short_repr(path)}"
        yield warns("trainer.resume_mode", got, "use resume_path", "conflicting-settings")
    for section in (ACTOR, *(["critic"] if run.needs_critic else [])):
        yield from contents(run(f"{section}.checkpoint"), f"{section}.checkpoint", engine_of(run(section))[0])
    kinds = {engine_of(run(section))[0] for section in (ACTOR, *(["critic"] if run.needs_critic else []))}
    yield from folders(run, facts, uploads="megatron" in kinds)
    yield from ends_early(run, facts)


def folders(run: Any, facts: LaunchFacts, *, uploads: bool) -> Results:
    """Where checkpoints go. `uploads`: whether what trains copies them to HDFS (checkpoint_handler.py:136,
    megatron_checkpoint_manager.py:1126; FSDP's does not read the folder)."""
    local, remote = run("trainer.default_local_dir"), run("trainer.default_hdfs_dir")
    if not is_set(local):  # trainer_base.py:857
        yield fails("trainer.default_local_dir", "null", "use the folder of the checkpoints")
    for key in WRITTEN:
        if "://" in str(run(key)):  # os.makedirs takes it for a name
            got = f"{short_repr(run(key))} is taken for a folder of this name on the node: nothing is stored there"
            yield fails(key, got, "use a folder, and copy it to the storage yourself", "not-supported")
    if not is_set(remote):
        return
    if not uploads:
        got = f"{short_repr(remote)} is not read: checkpoints are in trainer.default_local_dir alone"
        yield warns("trainer.default_hdfs_dir", got, "leave it out, and copy the checkpoints yourself")
    elif str(remote).startswith("hdfs") and facts.programs is not None and "hdfs" not in facts.programs:
        got = f"{short_repr(remote)}, and there is no program hdfs: no checkpoint gets there, without an error"
        yield fails("trainer.default_hdfs_dir", got, "install hadoop, or leave it out", "not-installed")


def _step_folder(path: Any) -> str:
    """What to use instead: the path without what stands behind its step, if it has one."""
    found = re.match(r".*global_step_\d+", str(path))
    return f"use {found[0]}" if found else "use the folder .../global_step_N"


def contents(checkpoint: dict[str, Any] | None, place: str, kind: str) -> Results:
    """What a checkpoint holds and what is read of it (fsdp_checkpoint_manager.py:185, trainer_base.py:1012)."""
    saved, loaded = (at(checkpoint, name) or [] for name in ("save_contents", "load_contents"))
    for name in saved:
        if name not in CONTENTS:
            yield RuleResult("WARN", not_one_of(f"{place}.save_contents", name, CONTENTS))
    if missing := sorted({*loaded} - {*saved}):
        got = f"{', '.join(missing)}, which save_contents does not save: no resume"
        yield warns(f"{place}.load_contents", got, "use the same contents", "conflicting-settings")
    if checkpoint and "model" not in saved and not (kind == "megatron" and "hf_model" in saved):
        got = "without model no resume"
        if "hf_model" in saved:
            got += f": {kind} does not read hf_model, and would go on with the weights it began with"
        yield warns(f"{place}.save_contents", got, "add model")
    if at(checkpoint, "async_save") and kind != "megatron":
        got = f"true, which {kind} does not do; the file that names the last checkpoint is not written: no resume"
        yield fails(f"{place}.async_save", got, "use false", "not-supported")


def ends_early(run: Any, facts: LaunchFacts) -> Results:
    """The last step is the one that saves and validates at the end, and the epochs may end before it
    (trainer_base.py:468, sft_trainer.py:412)."""
    rows, steps = rows_of(run, facts), run("trainer.total_training_steps")
    if steps is not None and steps < 1:
        yield fails("trainer.total_training_steps", f"{steps}: the run ends without being trained", "use at least 1")
    if steps is None or rows is None or rows < run.batch:
        return
    an_epoch, epochs = rows // run.batch, run("trainer.total_epochs")
    if steps > an_epoch * epochs > 0:
        got = f"{epochs} of {an_epoch} steps end before total_training_steps={steps}: nothing is saved at the end"
        yield warns("trainer.total_epochs", got, [-(-steps // an_epoch)], "conflicting-settings")


def steps_of(run: Any, facts: LaunchFacts) -> int | None:
    """Steps that the schedules are made for (trainer_base.py:768, sft_trainer.py:184)."""
    rows, steps = rows_of(run, facts), run("trainer.total_training_steps")
    return rows // run.batch * run("trainer.total_epochs") if steps is None and rows is not None else steps


def rows_of(run: Any, facts: LaunchFacts) -> int | None:
    """Rows that are trained on: `data.train_max_samples` of them, where it is above 0 (rl_dataset.py)."""
    most = run("data.train_max_samples", -1) or -1
    return min(facts.rows, most) if facts.rows is not None and most > 0 else facts.rows
