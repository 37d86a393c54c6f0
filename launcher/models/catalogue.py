"""The catalogue: models of the config group `model`, and facts about any model, without a network."""

from __future__ import annotations

from pathlib import Path

from launcher.core.bounded_parse import parse_yaml, read_start
from launcher.core.problems import Problem, Problems, short_repr, suggest
from launcher.core.settings import from_node
from launcher.models.pretrained import Pretrained

_PRETRAINED = f"{Pretrained.__module__}.{Pretrained.__qualname__}"


def choices(group: Path) -> dict[str, Pretrained]:
    """The models in the files of the folder `group`, by name; those without a path are left out."""
    models = {}
    for file in sorted(group.glob("*.yaml")):
        node = parse_yaml(read_start(file))
        if node.pop("_target_", None) == _PRETRAINED and node.get("path") not in (None, "???"):
            models[file.stem] = from_node(Pretrained, node)
    return models


def resolve_model(word: str, group: Path) -> Pretrained:
    """The model of a name in the catalogue, or of a hub id. Raises `Problems` for anything else."""
    catalogue = choices(group)
    if word in catalogue:
        return catalogue[word]
    hub_model = Pretrained(path=word)
    if hub_model.on_hub:
        return next((model for model in catalogue.values() if model.path == word), hub_model)
    got = "is neither a model of the catalogue nor owner/name"
    raise Problems(Problem(short_repr(word), got, suggest(word, list(catalogue))))
