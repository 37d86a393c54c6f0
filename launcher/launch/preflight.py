"""What can be known to fail before anything starts."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.spec.run import RunSpec


def problems(run: RunSpec) -> list[str]:
    """One line for each thing that would fail: files that are not there, folders that cannot be written."""
    found = [*run.data.problems(), *run.model.problems()]
    root = Path(run.trainer.run_root).expanduser()
    standing = next((path for path in (root, *root.absolute().parents) if path.exists()), root)
    if not standing.is_dir():
        found.append(f"trainer.run_root: {str(standing)!r} is a file; a folder would do")
    elif not os.access(standing, os.W_OK | os.X_OK):
        found.append(f"trainer.run_root: cannot write to {str(standing)!r}; another folder would do")
    return list(dict.fromkeys(found))
