"""Where a checkpoint keeps what is read outside its engine: its policy in Hugging Face's layout.

Names inside a checkpoint are known here, to the engine that writes it, and to `core.checkpoints`, which has the
manifest. An engine whose checkpoints hold no such folder writes one elsewhere when it is asked to
(`Engine.write_policy`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_LEVELS_BELOW_RUN = 3  # policy < checkpoint < checkpoints < run


@dataclass(frozen=True)
class CheckpointFormat:
    """The public part of the layout of a checkpoint."""

    policy: str = "policy"
    """Folder of the policy, with a config.json, or an adapter_config.json where it is an adapter."""
    base: str = "base"
    """Folder inside `policy` with the weights under an adapter, where they are stored nowhere else."""

    def policy_path(self, checkpoint: Path) -> Path:
        """The policy's folder, if the checkpoint holds it in this layout; it may not exist."""
        return checkpoint / self.policy

    def policy_folder(self, checkpoint: Path) -> Path | None:
        """The folder of the policy; None where the engine keeps it in files of its own."""
        folder = self.policy_path(checkpoint)
        return folder if folder.is_dir() else None

    def run_of(self, policy: Path) -> Path | None:
        """The folder of the run that a policy's folder belongs to; None where it cannot be in a run."""
        in_a_run = policy.name == self.policy and len(policy.parents) > _LEVELS_BELOW_RUN
        return policy.parents[2] if in_a_run else None


FORMAT = CheckpointFormat()
