"""What Ray, the checkpoint and the loggers of a run need, and where verl waits for ever instead of failing."""

from __future__ import annotations

from launcher.core.problems import short_repr
from launcher.engines.verl.rules.facts import LaunchFacts, Results, fails, warns
from launcher.engines.verl.rules.settings import BatchSizes

CPUS_PER_GPU = 3
"""CPUs that Ray reserves for each GPU."""
WANDB_REFUSES = "/\\#?%:"


def judge_cluster(run: BatchSizes, facts: LaunchFacts) -> Results:
    yield from _gpus(run, facts)
    yield from _loggers(run, facts)
    resumes = run("trainer.resume_mode") in ("auto", "resume_path")
    if resumes and facts.checkpoint_world not in (None, run.gpus):
        got = f"the checkpoint is of {facts.checkpoint_world} processes, and the run has {run.gpus}"
        yield fails("trainer.n_gpus_per_node", got, "use as many GPUs, or leave the checkpoint out")


def _gpus(run: BatchSizes, facts: LaunchFacts) -> Results:
    if run("trainer.nnodes") != 1:
        return
    if facts.visible_gpus is not None and facts.visible_gpus < run.gpus:
        got = f"{run.gpus} GPUs, and CUDA_VISIBLE_DEVICES shows {facts.visible_gpus} of this machine's"
        yield fails("trainer.n_gpus_per_node", got, [facts.visible_gpus] if facts.visible_gpus else "", "not-enough")
    if not run.sampled:
        return
    units = int(run("transfer_queue.backend.SimpleStorage.num_data_storage_units") or 0) + 1 if run.v1 else 0
    where = "ray_kwargs.ray_init.num_cpus"
    there, least = run(where), CPUS_PER_GPU * run.gpus + units + 1
    if there is not None and there < least:
        got = f"{there} CPUs are fewer than the {least} that verl reserves in Ray: it waits for ever"
        yield fails(where, got, [least], "not-enough")


def _loggers(run: BatchSizes, facts: LaunchFacts) -> Results:
    given = run("trainer.logger")
    names = [given] if isinstance(given, str) else list(given or ())
    project = str(run("trainer.project_name"))
    if "wandb" in names and (wrong := sorted({*project} & {*WANDB_REFUSES})):
        got = f"{short_repr(project)}: wandb takes no {' or '.join(wrong)} in it"
        yield fails("trainer.project_name", got, f"use {''.join('-' if c in wrong else c for c in project)}")
    accounts = {"WANDB_API_KEY", "WANDB_MODE", "WANDB_DISABLED"}
    if facts.variables is not None and "wandb" in names and not accounts & facts.variables:
        got = "wandb, without WANDB_API_KEY or WANDB_MODE: the run asks for a key, or fails"
        yield warns("trainer.logger", got, "use [console], or set WANDB_MODE=offline")
