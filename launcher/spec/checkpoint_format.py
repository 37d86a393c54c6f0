"""Where a checkpoint keeps what is read outside its engine: its policy in Hugging Face's layout.

Names inside a checkpoint are known here, to the engine that writes it, and to `core.checkpoints`, which has the
manifest. An engine whose checkpoints hold no such folder writes one elsewhere when it is asked to
(`Engine.write_policy`).
"""

from __future__ import annotations

from pathlib import Path

POLICY = "policy"
"""Folder of the policy, with a config.json, or an adapter_config.json where it is an adapter."""
BASE = "base"
"""Folder inside `POLICY` with the weights under an adapter, where they are stored nowhere else."""
_LEVELS_BELOW_RUN = 3  # policy < checkpoint < checkpoints < run


def policy_folder(checkpoint: Path) -> Path | None:
    """The folder of the policy; None where the engine keeps it in files of its own."""
    folder = checkpoint / POLICY
    return folder if folder.is_dir() else None


def run_of(policy: Path) -> Path | None:
    """The folder of the run that a policy's folder belongs to; None where it cannot be in a run."""
    in_a_run = policy.name == POLICY and len(policy.parents) > _LEVELS_BELOW_RUN
    return policy.parents[2] if in_a_run else None
