"""Loads a network of transformers with all of its weights, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launcher.core.problems import Problems
from launcher.engines.torch.model import dry_load
from launcher.models import config, fit, weights


def load_whole(auto: Any, path: str, where: str, **more: Any) -> Any:
    """`auto.from_pretrained`. Raises `Problems` that name the setting `where` if any weight would be a random number:
    transformers only logs that."""
    module, info = auto.from_pretrained(
        path, use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True, **more
    )
    folder = Path(path)
    here = folder.is_dir()  # else a hub's, whose own code may run
    report = fit.LoadReport(**dry_load.report(module, info, weights.tensors(folder) if here else {}))
    files = weights.read_by_a_loader(folder) if here else ()
    if found := fit.problems(report, config.read(folder) or {}, where, files):
        raise Problems(found)
    return module
