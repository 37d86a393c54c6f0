"""A model in Hugging Face's layout: from the hub, a folder, or an earlier run."""

from __future__ import annotations

import re
from pathlib import Path

from launcher.checkpoints import newest_first
from launcher.problems import nearest, shown
from launcher.settings import settings
from launcher.spec.model import Model

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
        return re.sub(r"[^A-Za-z0-9._-]", "-", path.parents[2].name if path.name == "policy" else path.name)

    def problems(self) -> list[str]:
        folder = Path(self.path).expanduser()
        if folder.is_dir():
            if (folder / "config.json").is_file() or newest_first(folder / "checkpoints"):
                return []
            return [f"model.path: {shown(self.path)} holds no config.json and no checkpoint; a model's folder would do"]
        if folder.exists():
            return [f"model.path: {shown(self.path)} is a file; the folder that holds config.json would do"]
        if _HUB_ID.fullmatch(self.path) and not Path(self.path).parent.is_dir():
            return []
        beside = [path.name for path in folder.parent.iterdir()] if folder.parent.is_dir() else []
        return [f"model.path: no folder {shown(self.path)}; {nearest(folder.name, beside, listed='beside it stand')}"]
