"""Command-line words -> Hydra -> RunSpec. With `sources` the only file that imports Hydra."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import MarkedYAMLError, YAMLError

from launcher.config import guard, sources
from launcher.config.explain import explain
from launcher.config.nodes import TARGET, walk
from launcher.config.yaml_lines import defaults_choices
from launcher.core.classes import add_code_dir
from launcher.core.problems import Problem, Problems, error_message, short_repr, suggest
from launcher.core.settings import from_node
from launcher.spec.run import RunSpec

PACKAGE = Path(__file__).parents[1]
PARTS = "reward.parts"
_RESOLVER = re.compile(r"\$\{[^}]*[:$]")  # ${oc.env:HOME}, ${oc.${name}:HOME}: they reach outside the config
_FAULTS = (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError, RecursionError)  # of composing


def conf_dir() -> Path:
    """The config groups: inside the package where it is installed, beside it in a clone."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parent / "conf"


def groups(extra: Path | None = None) -> dict[str, list[str]]:
    """Every config group with its choices. A folder of `extra` that is no group of ours is something else's."""
    found: dict[str, set[str]] = {}
    for file in conf_dir().glob("*/*.yaml"):
        found.setdefault(file.parent.name, set()).add(file.stem)
    for file in extra.glob("*/*.yaml") if extra else ():
        if file.parent.name in found:
            found[file.parent.name].add(file.stem)
    return {group: sorted(choices) for group, choices in sorted(found.items())}


def config_file(name: str, config_dir: Path | None) -> Path:
    """The file of `group/choice`, in the first folder that has it, as Hydra searches them."""
    folders = [conf_dir(), *([config_dir] if config_dir else [])]
    return next(path for folder in folders if (path := folder / f"{name}.yaml").is_file())


@dataclass(frozen=True)
class Words:
    """The arguments, sorted by what they do."""

    choices: dict[str, str]
    """The word that chooses, for each group that has one."""
    values: list[str]
    problems: list[Problem]
    doubtful: set[str]
    """Groups whose choice was refused: what else goes wrong there follows from that."""


def resolve(words: Iterable[str], config_dir: Path | None = None) -> RunSpec:
    """`words` are Hydra's: `algorithm=grpo` picks a file of conf/algorithm, `sampler.n=8` sets a value.

    `config_dir` adds a folder of config groups to ours. Raises `Problems` with everything that is wrong.
    """
    if config_dir and not config_dir.is_dir():
        got, fix = f"no folder {short_repr(str(config_dir))}", "use one that holds <group>/<choice>.yaml"
        raise Problems(Problem("--config-dir", got, fix, "not-found"))
    words = list(words)
    guard.check(words)
    add_code_dir(config_dir)
    known = groups(config_dir)
    read = _sort(words, known)
    base = _base(read, config_dir)
    try:
        node, refusals = _compose(base, read.values)
    except Problems as found:
        raise Problems([*read.problems, *found.problems]) from None
    unchosen = [group for group in known if group not in node]
    problems = [*read.problems, *refusals]
    problems += [
        Problem(group, "not chosen", f"it may be {', '.join(known[group])}", "unknown-choice")
        for group in unchosen
        if group not in read.doubtful
    ]
    problems += [Problem(place, "has no value", f"use {place}=VALUE") for place, value in walk(node) if value == "???"]
    has_code = config_dir and any(path for pattern in ("*.py", "*/*.py") for path in config_dir.glob(pattern))
    node["code_dir"] = str(config_dir.resolve()) if config_dir and has_code else None
    try:
        run = from_node(RunSpec, node)
    except ValidationError as error:
        reported = {*unchosen, *read.doubtful}  # what else is wrong there follows from that
        problems += [each for each in explain(error, node) if each.where.partition(".")[0] not in reported]
    else:
        if not problems:
            return run
    raise Problems(problems)


def config_files(words: Sequence[str], config_dir: Path | None = None) -> list[tuple[Path, str]]:
    """The config files of a run that `resolve` accepts, in the order in which they are merged: a later one wins.

    With each the place of the run that it is put at: `reward.parts.gsm8k`; empty for the run itself.
    """
    read = _sort(words, groups(config_dir))
    sources.install()
    with initialize_config_dir(str(conf_dir()), version_base=None):
        loader = GlobalHydra.instance().config_loader()
        found = loader.compute_defaults_list("run", _base(read, config_dir), RunMode.RUN).defaults
    placed = [(one.config_path, one.package or "") for one in found if one.config_path]
    return [(config_file(name, config_dir), place) for name, place in placed if not name.startswith("hydra/")]


@dataclass(frozen=True)
class GivenValue:
    """What a word sets."""

    key: str
    value: Any
    removed: bool
    """`~key`: what files had set there is gone."""


def given_value(word: str) -> GivenValue:
    override = parse(word)
    removed = override.type == OverrideType.DEL
    return GivenValue(override.key_or_group, None if removed else override.value(), removed)


def _base(read: Words, config_dir: Path | None) -> list[str]:
    """The words that choose, as Hydra takes them."""
    unset = sorted(group for group, choice in defaults_choices(conf_dir() / "run.yaml").items() if not choice)
    excluded = [group for group in unset if group not in (*read.choices, "_self_")]
    search = []
    if config_dir:
        quoted = str(config_dir.resolve()).replace("'", r"\'")
        search = [f"hydra.searchpath=['{sources.SCHEME}://{quoted}']"]
    return [*search, *(f"~{group}" for group in excluded), *read.choices.values()]


def _sort(words: Iterable[str], known: dict[str, list[str]]) -> Words:
    """Words that Hydra can take, in the spelling it takes; a problem for each of the others."""
    read = Words({}, [], [], set())
    for word in words:
        try:
            override = parse(word)
        except Problems as unreadable:
            read.problems.extend(unreadable.problems)
            continue
        key = override.key_or_group
        spelled, top = _spelling(override, word, known), key.partition(".")[0]
        if problem := _refusal(override, known):
            read.problems.append(problem)
            read.doubtful.update([top, *get_close_matches(top, known, n=1)])
        elif key == PARTS and isinstance(override.value(), dict):
            _choose_parts(override.value(), known["reward"], read)
        elif key not in known:
            read.values.append(spelled)
        elif (first := read.choices.setdefault(key, spelled)) != spelled:
            fix = "keep one of the two"
            read.problems.append(Problem(key, f"chosen twice, as {first} and {spelled}", fix, "conflicting-settings"))
            read.doubtful.add(key)
    return read


def parse(word: str) -> Override:
    """A word by Hydra's grammar. Raises `Problems` where it cannot be read."""
    try:
        word.encode()
        return OverridesParser.create().parse_override(word)
    except (HydraException, UnicodeEncodeError) as error:
        reason = error_message(error).partition("See https")[0].strip().rstrip(".")
        fix = f"use {_readable(word)}"
        raise Problems(Problem(short_repr(word), f"cannot be read ({reason})", fix)) from error


def _choose_parts(weights: dict[Any, Any], known: list[str], read: Words) -> None:
    """`reward.parts={gsm8k: 1.0}` becomes a choice of the group, put there, and its weight."""
    for name, weight in weights.items():
        if name not in known:
            read.problems.append(Problem(PARTS, f"no choice {name!r}", suggest(str(name), known), "unknown-choice"))
            read.doubtful.add("reward")
        else:
            read.choices[f"{PARTS}.{name}"] = f"+reward@{PARTS}.{name}={name}"
            read.values.append(f"++reward.weights.{name}={weight}")


def _refusal(override: Override, known: dict[str, list[str]]) -> Problem | None:
    """Why an argument is refused; None when it is taken."""
    key = override.key_or_group
    top, _, rest = key.partition(".")
    if not top:
        return Problem(short_repr(override.input_line), "names no setting", "use key=value")
    if _RESOLVER.search(override.input_line or ""):
        return Problem(key, "${...:...} is for config files only", "write the value itself", "not-permitted")
    if override.is_sweep_override():
        return Problem(key, f"{short_repr(override.input_line)} is a sweep", "use -m, or one value")
    if override.package is not None:
        return Problem(short_repr(override.input_line), "a choice has the name of its group", f"use {top}=CHOICE")
    if top == "hydra" or key.startswith("hydra/"):
        return Problem(key, "Hydra's own settings are not part of a run", "leave it out", "not-permitted")
    if TARGET in key or names_target(override.value()):
        return Problem(key, f"{TARGET} is named by config files only", f"use {top}=CHOICE", "not-permitted")
    settable = [*known, "optim", "critic", "trainer", "seed"]
    if top not in settable:
        return Problem(key, f"no group or setting {top!r}", suggest(top, settable), "unknown-setting")
    if rest or top not in known or override.type == OverrideType.DEL:
        return None
    choice = override.value()
    if not isinstance(choice, str):
        return Problem(top, f"{short_repr(choice)} is no choice", suggest("", known[top]), "unknown-choice")
    if choice not in known[top]:
        return Problem(top, f"no choice {choice!r}", suggest(choice, known[top]), "unknown-choice")
    return None


def names_target(value: Any) -> bool:
    return any(TARGET in place for place, _ in walk(value))


def _spelling(override: Override, word: str, known: dict[str, list[str]]) -> str:
    """Settings have their defaults in classes, not in YAML, so a plain `key=value` must be allowed to add."""
    top, _, rest = override.key_or_group.partition(".")
    if not rest and top in known:
        return f"~{top}" if override.type == OverrideType.DEL else word.lstrip("+")
    plain = override.type in (OverrideType.CHANGE, OverrideType.ADD)
    return f"++{word.removeprefix('+')}" if plain else word


def _compose(base: list[str], words: list[str]) -> tuple[dict[str, Any], list[Problem]]:
    """The run that the arguments make, and a problem for each that Hydra cannot apply."""
    sources.install()
    with initialize_config_dir(str(conf_dir()), version_base=None):
        try:
            return _composed([*base, *words]), []
        except _FAULTS:
            pass  # a config file or some word is at fault; which one shows when each stands alone
        try:
            _composed(base)
        except _FAULTS as error:
            raise Problems(_config_fault(error)) from error
        problems, good = [], []
        for word in words:
            try:
                _composed([*base, word])
                good.append(word)
            except _FAULTS as error:
                problems.append(Problem(word.lstrip("+"), error_message(error)))
        try:
            return _composed([*base, *good]), problems
        except _FAULTS as error:
            raise Problems([*problems, Problem("", error_message(error))]) from error


def _composed(words: list[str]) -> dict[str, Any]:
    return sources.resolved(compose("run", words))


def _config_fault(error: Exception) -> Problem:
    if isinstance(error, MarkedYAMLError) and error.problem_mark:
        return Problem(f"{error.problem_mark.name}:{error.problem_mark.line + 1}", str(error.problem), "", "bad-file")
    return Problem("--config-dir", error_message(error), "", "bad-file")


def _readable(word: str) -> str:
    """The argument as Hydra reads it: an open list is closed, and what is no plain name or number is quoted."""
    key, equals, value = word.partition("=")
    missing = "]" * (value.count("[") - value.count("]"))
    if missing and re.fullmatch(r"[\w.]+", key) and value.isprintable() and not set(value) & set("{}()'\"\\$"):
        return shlex.quote(f"{key}={value}{missing}")
    plain = equals and value.isprintable() and not set(value) & set('"\\${}[](),')
    return shlex.quote(f'{key}="{value}"') if plain and re.fullmatch(r"[\w.]+", key) else "key=value"
