"""Ends of a program that no Python traceback tells: what PyTorch, Ray, SLURM, the shell and the kernel print then.

Each pattern begins where the line of that program begins: an answer or a log that speaks of such an end is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.core.events import Level

_LABEL = re.compile(r"(?:[0-9]{1,5}: {0,2}|\[[\w.-]{1,30}\]: ?|\(raylet[^()\n]{0,60}\) ?){0,3}")
"""What srun -l, torchrun and Ray put before a line."""
_MARKS = re.compile(
    "ProcessGroup|slurmstepd: |srun: |Fatal Python|fault|Bus error|Aborted|Killed|terminate called|Workers \\(|"
    "A worker died|ray[.]exc|exitcode|exits with return"
)


@dataclass(frozen=True)
class LogEnding:
    """How a program ended, why most likely, and what to do."""

    pattern: str
    cause: str
    fix: str
    level: Level = "critical"
    decides: bool = False
    """Whether it came from outside: Python errors around it follow from it."""


_MEMORY = "the machine had too little memory (RAM, not that of the GPU), and a process was killed"
_LESS = "ask for more memory (sbatch --mem, limits.memory of a pod), or keep less in it: fewer workers, no offloading"
_SLURM = r"slurmstepd: error: \*{3} (?:JOB|STEP) .{1,200}CANCELLED AT \S{1,40}"
_SHELL = r"\S{1,200}: line [0-9]{1,6}: {1,8}[0-9]{1,9}"  # the script that began it, and its process
_TORCHRUN = (
    r"(?:E[0-9]{4} \S{1,20} [0-9]{1,9} \S{1,160}\] |"
    r"(?:\[[-:,. 0-9]{10,30}\] |ERROR:)torch\.distributed\.elastic\S{1,60}(?: \[ERROR\] |:))failed \(exitcode:"
)
_DEEPSPEED = r"\[[-:,. 0-9]{10,30}\] \[ERROR\] \[launch\.py:.{0,2000}exits with return code ="
_RESUME = "resume from the latest checkpoint"

ENDINGS = (
    LogEnding(
        r"\[E[^\]]{0,80}ProcessGroup\w{1,20}\.cpp:[0-9]{1,6}\].{0,120}(?:Watchdog caught collective|watchdog thread)",
        "a rank did not come to an operation that all ranks share: it died, hangs, or is much slower",
        "look for the first error of the other ranks; of one that is only slow raise the limit "
        "(verl: actor_rollout_ref.nccl_timeout=3600, TRL: --ddp_timeout 3600)",
    ),
    LogEnding(
        r"slurmstepd: error: Detected [0-9]{1,9} oom.kill event|srun: error: .{1,200}: Out Of Memory$|"
        r"(?:\[[ .0-9]{1,20}\] )?(?:Memory cgroup out|Out) of memory: Killed process [0-9]",
        _MEMORY, _LESS, "critical", True,
    ),
    LogEnding(
        rf"{_SHELL} Killed {{2,}}\S|Killed$|srun: error: \S{{1,80}}: tasks? [-0-9,]{{1,80}}: Killed$|"
        rf"{_TORCHRUN} -9\) local_rank: |{_DEEPSPEED} -9$",
        "a process was killed (SIGKILL): most likely the machine had too little memory (RAM)", _LESS,
    ),
    LogEnding(
        r"(?:\[.{1,60}\] )?(?:\(raylet\) )?(?:node_manager\.cc:[0-9]{1,6}: )?[1-9][0-9]{0,6} Workers "
        r"\(tasks / actors\) killed due to memory pressure|ray\.exceptions\.OutOfMemoryError:",
        _MEMORY, _LESS, "critical", True,
    ),
    LogEnding(
        _SLURM + " DUE TO TIME LIMIT", "SLURM's time limit", f"{_RESUME}, with a greater sbatch --time",
        "critical", True,
    ),
    LogEnding(
        _SLURM + " DUE TO (?:PREEMPTION|NODE FAILURE)", "SLURM took the machine back, or lost it", _RESUME,
        "critical", True,
    ),
    LogEnding(_SLURM + r" \*{3}", "somebody cancelled the job", _RESUME, "info", True),
    LogEnding(
        rf"(?:{_SHELL} )?Bus error(?: {{2,}}\S| \(core dumped\)|$)|Fatal Python error: Bus error|"
        rf"{_TORCHRUN} -7\) local_rank: ",
        "shared memory is full, or a file that was mapped is gone",
        "give the container more shared memory (docker --shm-size=16g)",
    ),
    LogEnding(
        r"Fatal Python error: [A-Z]|"
        rf"(?:{_SHELL} )?(?:Segmentation fault|Aborted)(?: {{2,}}\S| \(core dumped\)|$)|"
        r"terminate called (?:after throwing an instance of|without an active)|!{3,8} Segfault encountered|"
        rf"{_TORCHRUN} -(?:6|11)\) local_rank: ",
        "native code crashed: a GPU kernel, a driver, or libraries that do not fit together",
        "look at the lines above it; run with PYTHONFAULTHANDLER=1 for the Python stack",
    ),
    LogEnding(
        r"ray\.exceptions\.(?:ActorDied|RayActor|ActorUnavailable|WorkerCrashed|NodeDied|LocalRayletDied)Error\b|"
        r"A worker died or was killed while executing a task by an unexpected system error",
        "a worker process of Ray died: often for lack of memory (RAM), or by a crash of native code",
        "look at the worker's own log (ray logs), and at the kernel's (dmesg) for a process that was killed",
    ),
    LogEnding(
        rf"{_TORCHRUN} -?[0-9]{{1,3}}\) local_rank: |{_DEEPSPEED} -?[1-9]|"
        r"srun: error: \S{1,80}: tasks? [-0-9,]{1,80}: (?:Exited with exit code [1-9]|Segmentation|Aborted|Bus error)",
        "a rank ended with an error that is not in this log",
        "look for the first error in the logs of the other ranks (torchrun --log-dir FOLDER keeps one of each)",
    ),
)  # fmt: skip
OUT_OF_MEMORY = "out-of-memory"
FIXES: Mapping[str, Mapping[str, str]] = {
    OUT_OF_MEMORY: {
        "rlrun": "trainer.micro_batch_size_per_gpu=1 model.enable_gradient_checkpointing=true",
        "verl": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 "
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 "
        "actor_rollout_ref.model.enable_gradient_checkpointing=true "
        "actor_rollout_ref.actor.fsdp_config.param_offload=true "
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true; where it is while sampling: "
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
        "verl-sft": "data.micro_batch_size_per_gpu=1 model.enable_gradient_checkpointing=true",
        "trl": "--per_device_train_batch_size 1 --gradient_checkpointing true, with --gradient_accumulation_steps as "
        "many times larger as the batch is smaller",
        "any": "a smaller micro-batch, gradient checkpointing, and parameters offloaded to the CPU",
    }
}
"""What helps against an error that a log ends with, by its `rule`; as in a health rule's `fix`."""
_GPU_MEMORY = re.compile(
    r"(?:CUDA|HIP|NPU) out of memory|torch(?:\.cuda)?\.OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|"
    r"CUDA error: out of memory"
)


def is_gpu_memory(error: str) -> bool:
    """Whether a Python error says that the memory of a GPU ran out."""
    return _GPU_MEMORY.search(error) is not None


_COMPILED = [(ending, re.compile(ending.pattern)) for ending in ENDINGS]


def find(text: str) -> LogEnding | None:
    """The end that a line tells."""
    if not _MARKS.search(text) or len(text) > 4_000:
        return None
    begin = _LABEL.match(text)
    place = begin.end() if begin else 0
    return next((ending for ending, pattern in _COMPILED if pattern.match(text, place)), None)
