"""The catalogue: models of the config group `model`, and facts about any model, without a network."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from launcher.core.bounded_parse import parse_yaml, read_start
from launcher.core.files import expand_user
from launcher.core.problems import Problem, Problems, short_repr, suggest
from launcher.core.settings import from_node
from launcher.hubs import manifest
from launcher.hubs.manifest import Manifest
from launcher.models import config, size, store, weights
from launcher.models.pretrained import Pretrained
from launcher.spec.model import Architecture

_PRETRAINED = f"{Pretrained.__module__}.{Pretrained.__qualname__}"


@dataclass(frozen=True)
class KnownModel:
    """What is known of a model without a network."""

    name: str | None
    """Its name in the config group."""
    repo: str | None
    gated: bool
    folder: Path | None
    """Its local folder; None if it is not on this machine."""
    manifest: Manifest | None
    """Its manifest, if rlrun downloaded it."""
    architecture: Architecture | None
    parameters: int | None

    def files(self) -> list[tuple[str, int]]:
        """(name, bytes) of the files in its folder."""
        if self.folder is None:
            return []
        return sorted((path.name, path.stat().st_size) for path in self.folder.iterdir() if path.is_file())


def choices(group: Path) -> dict[str, Pretrained]:
    """The models in the files of the folder `group`, by name; those without a path are left out."""
    models = {}
    for file in sorted(group.glob("*.yaml")):
        node = parse_yaml(read_start(file))
        if node.pop("_target_", None) == _PRETRAINED and node.get("path") not in (None, "???"):
            models[file.stem] = from_node(Pretrained, node)

    def family_and_size(item: tuple[str, Pretrained]) -> tuple[str, int]:
        model = item[1]
        family = model.path.rpartition("/")[2].partition("-")[0].lower()
        return family, size.parameters(model.architecture) if model.architecture else 0

    return dict(sorted(models.items(), key=family_and_size))


def list_models(group: Path) -> list[KnownModel]:
    """The whole catalogue, with the local folders of its models."""
    return [_describe_hub_model(name, model) for name, model in choices(group).items()]


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


def find_model(word: str, group: Path) -> KnownModel:
    """Facts about a name in the catalogue, a hub id or a folder. Raises `Problems` where nothing is known."""
    folder = expand_user(word)
    if word not in choices(group) and folder.is_dir():
        return _describe_folder(folder)
    model = resolve_model(word, group)
    name = next((name for name, other in choices(group).items() if other == model), None)
    known_model = _describe_hub_model(name, model)
    if known_model.architecture is None and known_model.folder is None:
        got, fix = "is not here and not in the catalogue", f"run rlrun model download {word}"
        raise Problems(Problem(short_repr(word), got, fix, "not-found"))
    return known_model


def _describe_hub_model(name: str | None, model: Pretrained) -> KnownModel:
    folder = store.find(model.path, model.revision)
    local = _describe_folder(folder) if folder else None
    shape = (local.architecture if local else None) or model.architecture
    n_parameters = local.parameters if local and local.parameters else size.parameters(shape) if shape else None
    return KnownModel(name, model.path, model.gated, folder, local.manifest if local else None, shape, n_parameters)


def _describe_folder(folder: Path) -> KnownModel:
    """Facts from config.json, or for an unsupported family from the weights' headers. Raises `Problems`."""
    node, origin = config.read(folder), manifest.read(folder)
    if node is None and not (folder / "adapter_config.json").is_file():
        raise Problems(Problem(str(folder), "holds no config.json", "use a model's folder", code="not-found"))
    shape = config.architecture(node) if node else None
    n_parameters = size.parameters(shape) if shape else sum(map(prod, (weights.shapes(folder) or {}).values())) or None
    return KnownModel(None, origin.repo if origin else None, False, folder, origin, shape, n_parameters)
