"""Loads a network of transformers with all of its weights, or not at all."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

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
    is_local = folder.is_dir()  # else a hub's, whose own code may run
    report = fit.LoadReport(**dry_load.report(module, info, weights.tensors(folder) if is_local else {}))
    files = weights.read_by_a_loader(folder) if is_local else ()
    if problems := fit.problems(report, config.read(folder) or {}, where, files):
        raise Problems(problems)
    _drop_sampling_settings(module)
    return module


def _drop_sampling_settings(module: Any) -> None:
    """Of the settings for sampling keep only the special tokens: other programs read the rest from files, and
    transformers refuses to save some that it loads."""
    ends = ("eos_token_id", "bos_token_id", "pad_token_id")
    names = GenerationConfig().to_dict().keys() - {"use_cache", "transformers_version", *ends}
    for name in names & vars(module.config).keys() - {field.name for field in fields(module.config)}:
        delattr(module.config, name)
    if module.can_generate():
        module.generation_config = GenerationConfig(**{name: getattr(module.generation_config, name) for name in ends})
