"""Imported launch scripts: the config that verl composes of our words beside that of the script's own, key by key.

Both are composed by Hydra of the files of an installed verl, with the words as they stand."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from script_truth import settings_of

from launcher.config.resolve import resolve
from launcher.engines.verl import Verl, words
from launcher.scripts.read import read_script
from launcher.scripts.words.state import Launch
from launcher.tools.importing.launch import import_launch
from launcher.tools.importing.verl_config import differing
from launcher.tools.importing.written_configs import FOLDERS, with_written_config

CONFIGS = {
    "main_ppo": "ppo_trainer", "sft_trainer": "sft_trainer_engine", "sft_trainer_ray": "sft_trainer_engine",
}  # fmt: skip
"""verl's programs by their last name, with the config that each starts from."""
SERVER = "actor_rollout_ref.rollout.name="
"""An inference server, of which verl 0.9.1 has no default."""
OF_TORCHRUN = ("trainer.n_gpus_per_node", "trainer.nnodes")
"""Keys that `sft_trainer` does not read where torchrun starts it, and `sft_trainer_ray` does: ours say torchrun's."""


@dataclass(frozen=True)
class ConfigComparison:
    name: str
    outcome: str
    """equal (without the words of which only running tells the value); differs; refused (by us, and Hydra composes it);
    not composed (Hydra refuses the words)."""
    lines: tuple[str, ...] = ()
    """What differs or is refused."""


def compare_configs(script: Path, files: Path) -> list[ConfigComparison]:
    """Of each launch of one of verl's programs in the script; `files` is verl's folder `trainer/config`."""
    arguments, _ = settings_of(script)
    with tempfile.TemporaryDirectory() as name:
        copied = Path(name).resolve() / script.name
        shutil.copy(script, copied)
        if (script.parent / "parts").is_dir():
            shutil.copytree(script.parent / "parts", copied.parent / "parts")
        found = read_script(copied, arguments)
        placeholders = [part.placeholder for part in found.open if part.placeholder]
        ready = [with_written_config(one, found.written, placeholders, Path(name)).launch for one in found.launches]
        return [_compared(one, placeholders, files) for one in ready if _last_name(one) in CONFIGS]


def _compared(launch: Launch, placeholders: Sequence[str], files: Path) -> ConfigComparison:
    name = launch.line.rpartition("/")[2]
    known = [word for word in launch.words if not any(part in word for part in placeholders)]
    ppo = _last_name(launch) == "main_ppo"
    server = [] if not ppo or any(word.startswith(SERVER) for word in launch.words) else [f"{SERVER}vllm"]
    try:
        wanted = composed([*server, *known], CONFIGS[_last_name(launch)], files)
    except (HydraException, OmegaConfBaseException) as error:
        return ConfigComparison(name, "not composed", (str(error).splitlines()[0],))
    made = import_launch(launch, placeholders)
    if made.problems:
        return ConfigComparison(name, "refused", tuple(map(str, made.problems)))
    run = resolve(made.arguments)
    assert isinstance(run.engine, Verl)
    found = composed(words.arguments(run, run.engine, Path("run")), CONFIGS[_last_name(launch)], files)
    torchrun = any(wrapper.name == "torchrun" for wrapper in launch.wrappers)
    lines = tuple(
        f"{key}={value!r}" for key, value in differing(wanted, found) if not (torchrun and key in OF_TORCHRUN)
    )
    return ConfigComparison(name, "differs" if lines else "equal", lines)


def composed(given: Sequence[str], config: str, files: Path) -> dict[str, Any]:
    """What Hydra makes of verl's words. Raises its errors."""
    flags = [word for word in given if word.startswith("--config-name")]
    name = flags[-1].partition("=")[2].removesuffix(".yaml") if flags else config
    folder = next((word.partition("=")[2] for word in given if word.startswith(FOLDERS)), "")
    own = folder if (Path(folder) / f"{name}.yaml").is_absolute() else ""
    overrides = [word for word in given if not word.startswith("--")]
    with initialize_config_dir(own or str(files.resolve()), version_base=None):
        node = compose(name, overrides=[*([f"hydra.searchpath=[file://{files.resolve()}]"] if own else []), *overrides])
    made: dict[str, Any] = OmegaConf.to_container(node, resolve=True, throw_on_missing=False)  # type: ignore[assignment]
    return made


def _last_name(launch: Launch) -> str:
    return launch.program.removesuffix(".py").replace("/", ".").rpartition(".")[2]
