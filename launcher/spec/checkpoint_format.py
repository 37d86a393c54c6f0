"""Where a checkpoint keeps what others than its engine read: its policy in Hugging Face's layout.

No other file knows a name inside a checkpoint but the engine that writes it and `core.checkpoints`, which has the
manifest. An engine whose checkpoints hold no such folder writes one elsewhere when it is asked to
(`Engine.write_policy`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_IN_A_RUN = 3  # policy < checkpoint < checkpoints < run


@dataclass(frozen=True)
class CheckpointFormat:
    """How an engine lays out its checkpoints, as far as others may know."""

    policy: str = "policy"
    """Folder of the policy, with a config.json, or an adapter_config.json where it is an adapter."""
    base: str = "base"
    """In that folder: the weights under an adapter, where they are stored nowhere else."""

    def policy_path(self, checkpoint: Path) -> Path:
        """Where the policy lies, if the checkpoint holds it in this layout."""
        return checkpoint / self.policy

    def policy_folder(self, checkpoint: Path) -> Path | None:
        """The folder of the policy; None where the engine keeps it in files of its own."""
        folder = self.policy_path(checkpoint)
        return folder if folder.is_dir() else None

    def run_of(self, policy: Path) -> Path | None:
        """The folder of the run that a policy's folder lies in; None where it cannot be one."""
        in_a_run = policy.name == self.policy and len(policy.parents) > _IN_A_RUN
        return policy.parents[2] if in_a_run else None


FORMAT = CheckpointFormat()
