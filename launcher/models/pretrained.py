"""A model in Hugging Face's format: from a hub, a folder, or an earlier run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from launcher.core import checkpoints
from launcher.core.problems import Problem, Problems, path_repr, short_repr
from launcher.core.settings import settings
from launcher.hubs.choice import FromHub
from launcher.models import config, store, weights
from launcher.spec.checkpoint_format import BASE, POLICY, policy_folder, run_of
from launcher.spec.model import Architecture, Model

LAYOUTS = ("config.json", "adapter_config.json")
"""Config files of a model's folder: of weights, or of adapters, which name their base model."""
CHECKPOINTS = "checkpoints"  # in a run's folder


@settings
class Pretrained(FromHub, Model):
    """A model in Hugging Face's format: from a hub, a folder, or an earlier run."""

    path: str
    """Hub id (`Qwen/Qwen3-0.6B`), a folder with a config.json, or a run's folder: its newest checkpoint."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model; transformers then downloads model and code itself."""
    gated: bool = False
    """The hub serves it only to accounts that accepted its licence."""
    architecture: Architecture | None = None
    """Its dimensions, so that a plan needs no download; a folder's own config.json takes precedence."""

    @property
    def label(self) -> str:
        path = Path(self.path)
        return re.sub(r"[^A-Za-z0-9._-]", "-", (run_of(path) or path).name)

    @property
    def folder(self) -> Path:
        """The folder of its files, if they are here; for a run its newest checkpoint's, unverified."""
        folder = Path(self.path).expanduser()
        newest = checkpoints.newest_first(folder / CHECKPOINTS)
        return newest[0] / POLICY if newest else folder

    @property
    def shape(self) -> Architecture | None:
        node = self._config()
        return config.architecture(node) if node else self.architecture

    @property
    def positions(self) -> int | None:
        node = self._config()
        return config.positions(node) if node else super().positions

    def _config(self) -> dict[str, Any] | None:
        try:
            return None if self.on_hub else config.read(base_folder(self.folder) or self.folder)
        except (OSError, RuntimeError):  # an impossible name, which `problems` reports
            return None

    @property
    def is_run(self) -> bool:
        """Whether the path is a run's folder, whose newest verified checkpoint is used."""
        return bool(checkpoints.newest_first(Path(self.path).expanduser() / CHECKPOINTS))

    @property
    def here(self) -> Self:
        stored = self.on_hub and not self.trust_remote_code and store.find(self.path, self.revision)
        return replace(self, path=str(stored)) if stored else self

    def with_absolute_paths(self) -> Self:
        return replace(self, path=weights_of(self.path))

    def problems(self) -> list[Problem]:
        found = self.path_problems("model.path", _is_model, "config.json and no checkpoint")
        if found or self.on_hub:
            return found
        folder = self.folder
        if not self.trust_remote_code and (code := config.foreign_code(config.read(folder) or {})):
            got = f"{path_repr(self.path)} needs Python code that comes with it ({short_repr(code)})"
            return [Problem("model.path", got, "read it, then set model.trust_remote_code=true to run it")]
        if self.is_run:
            return []  # its newest verified checkpoint is used, which need not be this one
        return [problem.within("model.path") for problem in folder_problems(folder)]


def folder_problems(folder: Path) -> list[Problem]:
    """Why a model's folder cannot or must not be loaded, from its small files and the weights' headers."""
    faults = config.faults(folder) or config.content_faults(config.read(folder) or {})
    return [*faults, *(weights.folder_faults(folder) or weights.cut_faults(folder))]


def base_folder(folder: Path) -> Path | None:
    """The folder of the base model of the adapters in a folder; None where it has no adapters, or the base is not
    here."""
    if not (folder / LAYOUTS[1]).is_file():
        return None
    if (folder / BASE).is_dir():
        return folder / BASE
    base = (config.read(folder, LAYOUTS[1]) or {}).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        return None
    try:
        return store.find(base) if Pretrained(path=base).on_hub else Path(weights_of(base))
    except (Problems, OSError, RuntimeError):
        return None


def tokenizer_folder(folder: Path) -> Path:
    """The folder of a model's tokenizer: for adapters saved without one, that of their base model."""
    has_tokenizer = any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))
    return (None if has_tokenizer else base_folder(folder)) or folder


def _is_model(folder: Path) -> bool:
    return any((folder / name).exists() for name in LAYOUTS) or bool(checkpoints.newest_first(folder / CHECKPOINTS))


def weights_of(path: str) -> str:
    """The path of a model's weights: a run's newest verified checkpoint, the folder itself, or the hub id as given."""
    folder = Path(path).expanduser()
    root = folder / CHECKPOINTS
    if not root.is_dir():
        return str(folder.resolve()) if folder.is_dir() else path
    newest, faults = checkpoints.newest_verified(root)
    if newest is None:
        raise Problems([Problem("model.path", f"{path_repr(path)} has no checkpoint that verifies"), *faults])
    policy = policy_folder(newest)
    if policy is None:
        got = f"{path_repr(path)} is a run of another engine, whose checkpoints are in files of its own"
        fix = f"use rlrun checkpoints export {path} --to hf --out FOLDER, then that folder"
        raise Problems(Problem("model.path", got, fix, "not-supported"))
    return str(policy.resolve())
