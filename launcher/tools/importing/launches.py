"""A program that a script starts -> a launch of a training: its module or file, its arguments, its environment."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from launcher.core.bounded_parse import parse_yaml
from launcher.sandbox.script import LAUNCHERS, StartedProgram

OVERRIDE = re.compile(r"(?:\+\+|\+|~)?[A-Za-z_][\w./@:-]*=.*|~[\w./@-]+", re.DOTALL)
"""An argument of Hydra."""
TRAINERS = re.compile(r"(?:.*[./])?(?:main|train|run|sft|rl|ppo|grpo|dapo|fsdp)\w*(?:\.py)?|.*trainer.*")
"""Names of modules and files that are launches also without such arguments."""
PYTHON = re.compile(r"(.*/)?python[\d.]*")
MODULE = re.compile(r"(?:-[bBdEhiIOqsSuvVxP]*m|--module)(\w+(?:\.\w+)+)?")
VALUED = ("-W", "-X", "-H", "-i", "-e")
"""Short options of Python and of launchers that take the next word as a value."""
MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch",
           "accelerate.commands.accelerate_cli", "deepspeed.launcher.runner")  # fmt: skip
"""Modules that are launchers of processes."""


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


def launch_of(started: StartedProgram, written: Mapping[str, str]) -> Launch | None:
    """The launch; None where no program is named. `written`: files of the script, as Ray's runtime environment."""
    words, options = list(started.words), dict[str, str]()
    if started.name == "accelerate" and words[:1] == ["launch"]:
        words.pop(0)
    program = _take_program(words, options)
    if program in MODULES or (started.name in LAUNCHERS and PYTHON.fullmatch(program)):
        program = _take_program(words, options)
    if not program:
        return None
    environment = {**_ray_environment(started, written), **started.environment}
    return Launch(started.place, program, tuple(words), environment, options, started.folder)


def _take_program(words: list[str], options: dict[str, str]) -> str:
    """Removes the module or file from the front of `words` and returns it; options before it move to `options`."""
    while words:
        word = words.pop(0)
        if module := MODULE.fullmatch(word):
            return module[1] or (words.pop(0) if words else "")
        if not word.startswith("-"):
            return word
        key, equals, value = word.partition("=")
        takes_a_value = not equals and (word.startswith("--") or word in VALUED)
        if takes_a_value and words and not words[0].startswith("-") and not words[0].endswith(".py"):
            value = words.pop(0)
        options[key.lstrip("-").replace("_", "-")] = value
    return ""


def _ray_environment(started: StartedProgram, written: Mapping[str, str]) -> dict[str, str]:
    """`env_vars` of the runtime environment that `ray job submit` is given."""
    for command in started.within:
        words = [*command, ""]
        for index, word in enumerate(words[:-1]):
            option, equals, value = word.partition("=")
            value = value if equals else words[index + 1]
            if command[0] != "ray" or option not in ("--runtime-env-json", "--runtime-env"):
                continue
            path = posixpath.normpath(posixpath.join(started.folder, value))
            with suppress(ValueError, OSError):
                runtime_env = parse_yaml(value if option.endswith("json") else written.get(path, ""))
                variables = runtime_env.get("env_vars") if isinstance(runtime_env, dict) else None
                return {str(key): str(text) for key, text in variables.items()} if isinstance(variables, dict) else {}
    return {}
