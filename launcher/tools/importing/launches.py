"""A program that a script starts -> a launch of a training: its module or file, its arguments, its environment."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from launcher.core.bounded_parse import parse_yaml
from launcher.sandbox.script import LAUNCHERS, Started

OVERRIDE = re.compile(r"(?:\+\+|\+|~)?[A-Za-z_][\w./@:-]*=.*|~[\w./@-]+", re.DOTALL)
"""An argument of Hydra."""
TRAINERS = re.compile(r"(?:.*[./])?(?:main|train|run|sft|rl|ppo|grpo|dapo|fsdp)\w*(?:\.py)?|.*trainer.*")
"""Names of modules and files that are launches also without such arguments."""
MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
           "accelerate.commands.launch": "accelerate", "accelerate.commands.accelerate_cli": "accelerate",
           "deepspeed.launcher.runner": "deepspeed"}  # fmt: skip
"""Modules that are launchers of processes."""
APART = ("ray", "docker", "podman", "nerdctl", "kubectl", "ssh", "pdsh", "clush")


@dataclass(frozen=True)
class Launch:
    """One program of Python that the script starts."""

    line: str
    """`file:line` of the command."""
    program: str
    """The module (`verl.trainer.main_ppo`) or file (`recipe/dapo/main_dapo.py`)."""
    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Exported variables, those before the command, of `env` and of Ray's runtime environment."""
    processes: Mapping[str, str] = field(default_factory=dict)
    """Options of torchrun, such as `nproc-per-node`."""
    folder: str = ""
    """The working folder."""

    @property
    def trains(self) -> bool:
        return any(map(OVERRIDE.fullmatch, self.words)) or TRAINERS.fullmatch(self.program) is not None


def launch_of(started: Started, written: Mapping[str, str]) -> Launch | None:
    """None where it names no program. `written` are files of the script, which may hold Ray's runtime environment."""
    name, words, options = started.name, list(started.words), dict[str, str]()
    program = ""
    while words and not program:
        word = words.pop(0)
        if (found := re.fullmatch(r"-[bBdEhiIOqsSuvVxP]*m|--module", word)) and words:
            program = words.pop(0)
        elif not word.startswith("-") and not (name == "accelerate" and word == "launch"):
            program = word
        elif name in LAUNCHERS and word.startswith("--"):
            key, equals, value = word.partition("=")
            if not equals and words and not words[0].startswith("-") and not words[0].endswith(".py"):
                value = words.pop(0)
            options[key.lstrip("-").replace("_", "-")] = value
        elif word in ("-W", "-X", "-H", "-i", "-e") and words:
            words.pop(0)
        if launcher := MODULES.get(program):
            name, program = launcher, ""
        elif found is None and name in LAUNCHERS and re.fullmatch(r"(.*/)?python[\d.]*", program):
            name, program = "python", ""
    if not program:
        return None
    environment = {**_of_ray(started, written), **started.environment}
    return Launch(started.place, program, tuple(words), environment, options, started.folder)


def _of_ray(started: Started, written: Mapping[str, str]) -> dict[str, str]:
    """`env_vars` of the runtime environment that `ray job submit` is given."""
    for command in started.within:
        words = [*command, ""]
        for place, word in enumerate(words[:-1]):
            option, equals, value = word.partition("=")
            value = value if equals else words[place + 1]
            if command[0] != "ray" or option not in ("--runtime-env-json", "--runtime-env"):
                continue
            path = posixpath.normpath(posixpath.join(started.folder, value))
            with suppress(ValueError, OSError):
                described = parse_yaml(value if option.endswith("json") else written.get(path, ""))
                given = described.get("env_vars") if isinstance(described, dict) else None
                return {str(key): str(text) for key, text in given.items()} if isinstance(given, dict) else {}
    return {}
