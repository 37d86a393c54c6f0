"""A model in Hugging Face's layout: from the hub, a folder, or an earlier run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Self

from launcher.checkpoints import newest_first, newest_verified
from launcher.problems import Problems, nearest, said, shown
from launcher.settings import settings
from launcher.spec.model import Model

LAYOUTS = ("config.json", "adapter_config.json")
"""What a model's folder holds: weights, or adapters that name the weights they belong to."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@settings
class Pretrained(Model):
    path: str
    """Hugging Face id (`Qwen/Qwen3-0.6B`), a folder with a config.json, or a run's folder: its newest checkpoint."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""

    @property
    def label(self) -> str:
        path = Path(self.path)
        in_a_run = path.name == "policy" and len(path.parents) > 3  # run/checkpoints/step/policy
        return re.sub(r"[^A-Za-z0-9._-]", "-", path.parents[2].name if in_a_run else path.name)

    def rooted(self) -> Self:
        return replace(self, path=weights_of(self.path))

    def problems(self) -> list[str]:
        try:
            return self._folder_problems(Path(self.path).expanduser())
        except (OSError, RuntimeError) as error:  # a name that is too long, or the home of nobody
            return [f"model.path: got {shown(self.path)}, {said(error)}; a model's folder or hub id would do"]

    def _folder_problems(self, folder: Path) -> list[str]:
        if folder.is_dir():
            if any((folder / name).is_file() for name in LAYOUTS) or newest_first(folder / "checkpoints"):
                return []
            return [f"model.path: {shown(self.path)} holds no config.json and no checkpoint; a model's folder would do"]
        if folder.exists():
            return [f"model.path: {shown(self.path)} is a file; the folder that holds config.json would do"]
        if _HUB_ID.fullmatch(self.path) and not Path(self.path).parent.is_dir():
            return []
        if not folder.parent.is_dir():
            return [f"model.path: no folder {shown(self.path)}; neither is the folder {shown(str(folder.parent))}"]
        beside = [path.name for path in folder.parent.iterdir()]
        return [f"model.path: no folder {shown(self.path)}; {nearest(folder.name, beside, listed='beside it stand')}"]


def weights_of(path: str) -> str:
    """A run's folder stands for its newest checkpoint that verifies, a folder for itself, all else for the hub."""
    folder = Path(path).expanduser()
    if not (folder / "checkpoints").is_dir():
        return str(folder.resolve()) if folder.is_dir() else path
    newest, faults = newest_verified(folder / "checkpoints")
    if newest is None:
        raise Problems([f"model.path: {shown(path)} has no checkpoint that verifies", *faults])
    return str((newest / "policy").resolve())
