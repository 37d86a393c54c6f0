"""Config files and overrides -> one config, by Hydra's rules, called as a function: nothing of Hydra's process-wide
state (`GlobalHydra`, its plugins, its search path) is used, so that threads can compose different configs at once.

The parsers of Hydra and OmegaConf share tables that they fill while they read, without a lock of their own. `LOCK` is
held around them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any

import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_yaml_loader
from yaml.constructor import ConstructorError

from launcher.core.bounded_parse import LOADER

LOCK = RLock()
version.setbase(None)  # current rules of Hydra, without its warning that no version base is set


class _Loader(LOADER):
    """Reads YAML as OmegaConf does (`1e-6` is a number, a date is a text), with the parser in C if there is one."""

    yaml_implicit_resolvers = get_yaml_loader().yaml_implicit_resolvers

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        seen = set[Any]()
        for key, _ in node.value:
            if key.tag == yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG and key.value in seen:
                context, problem = "while constructing a mapping", f"found duplicate key {key.value}"
                raise ConstructorError(context, node.start_mark, problem, key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep=deep)


def compose(
    folders: Sequence[Path], name: str, overrides: Sequence[Override], check: Callable[[Path], object] | None = None
) -> tuple[DictConfig, list[tuple[str, str]]]:
    """The config `name`, and (name, package) of its files in the order in which they are merged. Each is taken from the
    first folder that has it, and `check` is called before it is read. Raises what Hydra, OmegaConf, YAML, the file
    system and `check` raise."""
    with LOCK:
        files = CachingConfigRepository(_Folders(folders, check))  # each file is read three times
        defaults = create_defaults_list(files, name, list(overrides), prepend_hydra=False, skip_missing=False)
        loader = ConfigLoaderImpl(ConfigSearchPathImpl())
        config = loader._compose_config_from_defaults_list(defaults.defaults, files)
        OmegaConf.set_struct(config, True)
        loader._apply_overrides_to_config(defaults.config_overrides, config)
        OmegaConf.set_struct(config, False)
        config.pop("hydra", None)
        return config, [(each.config_path, each.package or "") for each in defaults.defaults if each.config_path]


@lru_cache(4096)
def parse_override(word: str) -> Override:
    """An override, parsed by Hydra; cached, so never change it. Raises `HydraException` or `UnicodeEncodeError`."""
    word.encode()
    try:
        with LOCK:
            return OverridesParser.create().parse_override(word)
    except RecursionError as error:
        raise HydraException("its brackets stand too deep") from error


class _Folders(ConfigRepository):
    def __init__(self, folders: Sequence[Path], check: Callable[[Path], object] | None) -> None:
        self.sources = [_Folder(folder, check) for folder in folders]

    def get_schema_source(self) -> ConfigSource:
        return _NoSchema(Path(), None)


class _Folder(FileConfigSource):
    def __init__(self, folder: Path, check: Callable[[Path], object] | None) -> None:
        super().__init__("folder", str(folder))
        self.check = check

    def load_config(self, config_path: str) -> ConfigResult:
        file = Path(os.path.realpath(Path(self.path) / self._normalize_file_name(config_path)))
        if self.check:
            self.check(file)
        state = file.stat()
        header, values = _read_file(file, state.st_mtime_ns, state.st_size, state.st_ino)
        return ConfigResult(
            provider=self.provider, path=self.path, config=OmegaConf.create(values), header=dict(header)
        )


class _NoSchema(_Folder):
    """The source where Hydra looks for schemas (dataclasses) of files: it has none."""

    def load_config(self, config_path: str) -> ConfigResult:
        raise ConfigLoadError(config_path)


@lru_cache(1024)
def _read_file(file: Path, *state: int) -> tuple[tuple[tuple[str, str | None], ...], Any]:
    """(Hydra's header, values) of a file, cached while its `state` is the same; callers copy them."""
    header = ConfigSource._get_header_dict(file.read_text(encoding="utf-8")[:512])
    with file.open("rb") as opened:  # an error names the file
        values = yaml.load(opened, Loader=_Loader)
    return tuple(header.items()), {} if values is None else values
