"""The settings of whatever may come from a hub: which repository, which revision, and which hubs are asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from launcher.core.problems import error_message, short_repr, suggest
from launcher.core.settings import listed, settings
from launcher.hubs.repo import Source, is_id

HubOrder = Annotated[tuple[Source, ...], BeforeValidator(listed), Field(min_length=1)]


@settings
class FromHub:
    """A folder, or a repository on a hub that becomes a folder before the run starts."""

    path: str
    """Hub id (`owner/name`) or a folder."""
    revision: str | None = None
    """Branch, tag or commit on the hub; by default the hub's main one."""
    source: Literal["auto", "huggingface", "modelscope"] = "auto"
    """Which hub it is fetched from when it is not here; `auto` asks those of `sources` in turn."""
    sources: HubOrder = ("huggingface", "modelscope")
    """What `auto` means: the first hub that has it is taken."""

    @property
    def asked(self) -> tuple[Source, ...]:
        return self.sources if self.source == "auto" else (self.source,)

    @property
    def on_hub(self) -> bool:
        """Whether `path` names a repository, and no folder that is here."""
        here = Path(self.path)  # a name that a hub may have has no `~`
        return is_id(self.path) and not here.exists() and not here.parent.is_dir()

    def hub_problems(self, where: str, fits: Callable[[Path], bool], lacks: str = "config.json") -> list[str]:
        """Why nothing can be loaded from `path`, seen without a network: it is neither a repository's name nor a
        folder that `fits`. One that does not holds no `lacks`."""
        try:
            return self._problems(Path(self.path).expanduser(), where, fits, lacks)
        except (OSError, RuntimeError) as error:  # a name that is too long, or the home of nobody
            return [
                f"{where}: got {short_repr(self.path)}, {error_message(error)}; a model's folder or hub id would do"
            ]

    def _problems(self, folder: Path, where: str, fits: Callable[[Path], bool], lacks: str) -> list[str]:
        if folder.is_dir():
            return (
                []
                if fits(folder)
                else [f"{where}: {short_repr(self.path)} holds no {lacks}; a model's folder would do"]
            )
        if folder.exists():
            return [f"{where}: {short_repr(self.path)} is a file; the folder that holds config.json would do"]
        if self.on_hub:
            return []
        if not folder.parent.is_dir():
            return [
                f"{where}: no folder {short_repr(self.path)}; neither is the folder {short_repr(str(folder.parent))}"
            ]
        beside = [path.name for path in folder.parent.iterdir()]
        return [f"{where}: no folder {short_repr(self.path)}; {suggest(folder.name, beside, listed='beside it stand')}"]
