"""The models of the config group `model`, and what is known of any model without a network."""

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
    """A model, as far as it is known here."""

    name: str | None
    """Its choice in the config group."""
    repo: str | None
    gated: bool
    folder: Path | None
    """Its folder; None when it is not here."""
    manifest: Manifest | None
    """Its source, if it was downloaded by us."""
    architecture: Architecture | None
    parameters: int | None

    def files(self) -> list[tuple[str, int]]:
        """(name, bytes) of the files in its folder."""
        if self.folder is None:
            return []
        return sorted((path.name, path.stat().st_size) for path in self.folder.iterdir() if path.is_file())


def choices(group: Path) -> dict[str, Pretrained]:
    """The models that files of the folder `group` name, those without a path left out."""
    found = {}
    for file in sorted(group.glob("*.yaml")):
        node = parse_yaml(read_start(file))
        if node.pop("_target_", None) == _PRETRAINED and node.get("path") not in (None, "???"):
            found[file.stem] = from_node(Pretrained, node)

    def family_and_size(item: tuple[str, Pretrained]) -> tuple[str, int]:
        model = item[1]
        family = model.path.rpartition("/")[2].partition("-")[0].lower()
        return family, size.parameters(model.architecture) if model.architecture else 0

    return dict(sorted(found.items(), key=family_and_size))


def list_models(group: Path) -> list[KnownModel]:
    """The whole catalogue, with what is here of it."""
    return [_of_hub(name, model) for name, model in choices(group).items()]


def resolve_model(word: str, group: Path) -> Pretrained:
    """What a choice of the group, or a hub id, stands for. Raises `Problems` for anything else."""
    known = choices(group)
    if word in known:
        return known[word]
    asked = Pretrained(path=word)
    if asked.on_hub:
        return next((model for model in known.values() if model.path == word), asked)
    got = "is neither a model of the catalogue nor owner/name"
    raise Problems(Problem(short_repr(word), got, suggest(word, list(known))))


def find_model(word: str, group: Path) -> KnownModel:
    """What is known of a choice, a hub id or a folder, without a network. Raises `Problems` where that is nothing."""
    folder = expand_user(word)
    if word not in choices(group) and folder.is_dir():
        return _of_folder(folder)
    model = resolve_model(word, group)
    name = next((name for name, other in choices(group).items() if other == model), None)
    found = _of_hub(name, model)
    if found.architecture is None and found.folder is None:
        got, fix = "is not here and not in the catalogue", f"run rlrun model download {word}"
        raise Problems(Problem(short_repr(word), got, fix, "not-found"))
    return found


def _of_hub(name: str | None, model: Pretrained) -> KnownModel:
    folder = store.find(model.path, model.revision)
    here = _of_folder(folder) if folder else None
    shape = (here.architecture if here else None) or model.architecture
    count = here.parameters if here and here.parameters else size.parameters(shape) if shape else None
    return KnownModel(name, model.path, model.gated, folder, here.manifest if here else None, shape, count)


def _of_folder(folder: Path) -> KnownModel:
    """By its config.json, or where that is no family we count, by the headers of its weights."""
    node, of = config.read(folder), manifest.read(folder)
    if node is None and not (folder / "adapter_config.json").is_file():
        raise Problems(Problem(str(folder), "holds no config.json", "use a model's folder", code="not-found"))
    shape = config.architecture(node) if node else None
    count = size.parameters(shape) if shape else sum(map(prod, (weights.shapes(folder) or {}).values())) or None
    return KnownModel(None, of.repo if of else None, False, folder, of, shape, count)
