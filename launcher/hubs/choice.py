"""The settings of whatever may come from a hub: which repository, which revision, and which hubs are asked."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, get_args

from launcher.core.problems import Problem, error_message, path_repr, suggest
from launcher.core.settings import ReadOnlyWith, settings
from launcher.hubs.repo import Source, is_id

AnySource = Literal["auto", "huggingface", "modelscope"]
OF_HUB = ReadOnlyWith("on_hub", fix="{place}.path=OWNER/NAME", why="the path is a folder and no hub's id")
LOOKED_AT = 1000  # names below a folder that is no model


def hubs_of(source: AnySource) -> tuple[Source, ...]:
    """The hubs that are asked, in turn."""
    return get_args(Source) if source == "auto" else (source,)


@settings
class FromHub:
    """A folder, or a repository on a hub that becomes a folder before the run starts."""

    path: str
    """Hub id (`owner/name`) or a folder."""
    revision: Annotated[str | None, OF_HUB] = None
    """Branch, tag or commit on the hub; by default the hub's main one."""
    source: Annotated[AnySource, OF_HUB] = "auto"
    """Which hub it is fetched from when it is not here; `auto` asks Hugging Face, then ModelScope."""

    @property
    def on_hub(self) -> bool:
        """Whether `path` names a repository, and no folder that is here."""
        here = Path(self.path)  # a name that a hub may have has no `~`
        return is_id(self.path) and not here.exists() and not here.parent.is_dir()

    def path_problems(
        self, where: str, is_model: Callable[[Path], bool], expected: str = "config.json"
    ) -> list[Problem]:
        """Why nothing can be loaded from `path`, found without a network: it is neither a repository's name nor a
        folder that `is_model`. `expected` is the file that such a folder has."""
        folder, shown = Path(self.path), path_repr(self.path)
        try:
            folder = folder.expanduser()
            if folder.is_dir():
                if is_model(folder):
                    return []
                fix = _use_model(where, folder, is_model) or "use a model's folder"
                return [Problem(where, f"{shown} holds no {expected}", fix, "not-found")]
            if folder.exists():
                inside = is_model(folder.parent)
                fix = f"use {where}={shlex.quote(str(folder.parent))}" if inside else "use the folder of config.json"
                return [Problem(where, f"{shown} is a file", fix)]
            if self.on_hub:
                return []
            if not folder.parent.is_dir():
                got = f"there is no folder {shown}, nor {path_repr(folder.parent)}"
                return [Problem(where, got, "use a model's folder or hub id", "not-found")]
            siblings = [path.name for path in folder.parent.iterdir()]
        except (OSError, RuntimeError) as error:  # a name that is too long, or the home of an unknown user
            return [Problem(where, f"got {shown}, {error_message(error)}", "use a model's folder or hub id")]
        prefix = f"{where}={self.path.rstrip('/').removesuffix(folder.name)}"
        fix = suggest(folder.name, siblings, listed="its parent holds", before=prefix)
        return [Problem(where, f"there is no folder {shown}", fix, "not-found")]


def _use_model(where: str, folder: Path, is_model: Callable[[Path], bool]) -> str:
    """The argument for a model below `folder`, by number the last of several; empty where there is none."""
    subfolders = [path for pattern in ("*", "*/*") for path in islice(folder.glob(pattern), LOOKED_AT) if path.is_dir()]
    models = [path for path in subfolders if is_model(path)]
    last = max(models, key=lambda path: int((re.findall(r"\d+$", path.name) or [-1])[0]), default=None)
    return f"use {where}={shlex.quote(str(last))}" if last else ""
