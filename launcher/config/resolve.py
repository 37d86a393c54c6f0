"""Command-line words -> Hydra -> RunSpec. With `sources` the only file that imports Hydra."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import MarkedYAMLError, YAMLError

from launcher.config import defaults, guard, sources
from launcher.config.nodes import TARGET, flat, walk
from launcher.config.options import Unknown, separate_options
from launcher.config.yaml_lines import defaults_choices
from launcher.core.classes import add_code_dir
from launcher.core.problems import Problem, Problems, error_message, short_repr, shortened, suggest
from launcher.core.settings import from_node
from launcher.spec.run import RunSpec

if TYPE_CHECKING:
    from launcher.config.repair import Repair

PACKAGE = Path(__file__).parents[1]
PARTS = "reward.parts"
PLAIN = ("optim", "critic", "trainer", "seed")
"""Settings of a run that are no config group and that arguments set."""
STAND_INS = {"algorithm": "algorithm=sft", "model": "model=tiny", "data": "data=reverse"}
"""Choices that need no settings, for groups without a default: what else is wrong is looked for with them."""
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


@dataclass
class Words:
    """The arguments, sorted by what they do."""

    choices: dict[str, str] = field(default_factory=dict)
    """The word that chooses, for each group that has one."""
    values: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    """Those that name no setting of ours."""
    doubtful: set[str] = field(default_factory=set)
    """Settings, and groups whose choice was refused: what else goes wrong there follows from that."""
    no_choices: list[tuple[str, str]] = field(default_factory=list)
    """Groups with choices that they do not have."""


@dataclass(frozen=True)
class Examined:
    """A run, or all that is wrong with the arguments for it."""

    run: RunSpec | None
    """Where something is wrong, the run that is left without it; None where none is left."""
    problems: list[Problem]
    repair: Repair | None = None
    given: frozenset[str] = frozenset()
    """Settings that arguments or config files set."""

    def follows(self, problem: Problem) -> bool:
        """Whether a problem of `run` may be there only because of what was left out."""
        return self.repair is not None and self.repair.follows(problem)


def resolve(words: Iterable[str], config_dir: Path | None = None) -> RunSpec:
    """`words` are Hydra's: `algorithm=grpo` picks a file of conf/algorithm, `sampler.n=8` sets a value.

    `config_dir` adds a folder of config groups to ours. Raises `Problems` with everything that is wrong.
    """
    found = examine(words, config_dir)
    if found.problems or not found.run:
        raise Problems(found.problems)
    return found.run


def examine(words: Iterable[str], config_dir: Path | None = None) -> Examined:
    """The run of these words as `resolve` makes it, or everything that is wrong with them."""
    problems = []
    if config_dir and not config_dir.is_dir():
        got, fix = f"no folder {short_repr(str(config_dir))}", "use one that holds <group>/<choice>.yaml"
        problems.append(Problem("--config-dir", got, fix, "not-found"))
        config_dir = None
    words, options = separate_options(list(words))
    accepted, refused = guard.separate([*words, *(option.argument for option in options)])
    taken = {*accepted}
    if len(words) + len(options) > guard.WORDS:
        return Examined(None, [*problems, *refused])  # to answer them all would take minutes
    readable = [word for word in words if word in taken]
    options = [option for option in options if option.argument in taken]
    add_code_dir(config_dir)
    known = groups(config_dir)
    read = _sort(readable, known)
    read.unknown[:0] = options
    composed = _compose_chosen(read, config_dir)
    problems += [*refused, *read.problems, *composed.problems]
    has_code = config_dir and any(path for pattern in ("*.py", "*/*.py") for path in config_dir.glob(pattern))
    composed.node["code_dir"] = str(config_dir.resolve()) if config_dir and has_code else None
    complete = all(group in composed.node for group in known) and all(
        value != "???" for _, value in walk(composed.node)
    )
    if complete and not (problems or read.unknown or read.no_choices):
        try:
            return Examined(
                from_node(RunSpec, composed.node), [], given=frozenset(flat(composed.node)) - composed.filled
            )
        except ValidationError:
            pass  # all that is wrong is found below
    from launcher.config import wrong  # noqa: PLC0415  # late: names of other projects, every class of every choice

    return wrong.examine(read, composed, problems, config_dir)


def config_files(words: Sequence[str], config_dir: Path | None = None) -> list[tuple[Path, str]]:
    """The config files of a run that `resolve` accepts, in the order in which they are merged: a later one wins.

    With each the place of the run that it is put at: `reward.parts.gsm8k`; empty for the run itself.
    """
    read = _sort(words, groups(config_dir))
    sources.install()
    with initialize_config_dir(str(conf_dir()), version_base=None):
        loader = GlobalHydra.instance().config_loader()
        found = loader.compute_defaults_list("run", _base(read.choices, config_dir), RunMode.RUN).defaults
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


def _base(choices: Mapping[str, str], config_dir: Path | None) -> list[str]:
    """The words that choose, as Hydra takes them."""
    unset = sorted(group for group, choice in defaults_choices(conf_dir() / "run.yaml").items() if not choice)
    excluded = [group for group in unset if group not in (*choices, "_self_")]
    search = []
    if config_dir:
        quoted = str(config_dir.resolve()).replace("'", r"\'")
        search = [f"hydra.searchpath=['{sources.SCHEME}://{quoted}']"]
    return [*search, *(f"~{group}" for group in excluded), *choices.values()]


def _sort(words: Iterable[str], known: dict[str, list[str]]) -> Words:
    """Words that Hydra can take, in the spelling it takes; a problem for each of the others."""
    read = Words()
    for word in words:
        key = key_of(word)
        top = key.partition(".")[0]
        try:
            override = parse(word)
        except Problems as unreadable:
            if top in (*known, *PLAIN) or not re.fullmatch(r"[\w.]*[a-z][\w.]*", key) or "=" not in word:
                read.problems.extend(unreadable.problems)
                read.doubtful.update([key] if key else [])
            else:
                read.unknown.append(Unknown(key, word.partition("=")[2]))
            continue
        key, spelled = override.key_or_group, spelling(override, word, known)
        top = key.partition(".")[0]
        if problem := _refusal(override, known):
            read.problems.append(problem)
            read.doubtful.update([key, *(get_close_matches(top, known, n=1) if top not in known else [])])
        elif top not in (*known, *PLAIN):
            read.unknown.append(Unknown(key, word.partition("=")[2]))
        elif key in known and override.type != OverrideType.DEL and (choice := override.value()) not in known[key]:
            read.no_choices.append((key, choice))
        elif key == PARTS and isinstance(override.value(), dict):
            _choose_parts(override.value(), known["reward"], read)
        elif key not in known:
            read.values.append(spelled)
        elif (first := read.choices.setdefault(key, spelled)) != spelled:
            fix = "keep one of the two"
            read.problems.append(Problem(key, f"chosen twice, as {first} and {spelled}", fix, "conflicting-settings"))
            read.doubtful.add(key)
    return read


def key_of(word: str) -> str:
    """What a word names."""
    return word.lstrip("+~").partition("=")[0]


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
    top = key.partition(".")[0]
    if not top:
        return Problem(short_repr(override.input_line), "names no setting", "use key=value")
    if _RESOLVER.search(override.input_line or ""):
        return Problem(key, "${...:...} is for config files only", "write the value itself", "not-permitted")
    if override.is_sweep_override() and top in (*known, *PLAIN):
        return Problem(key, f"{short_repr(override.input_line)} is a sweep", "use -m, or one value")
    if override.package is not None:
        return Problem(short_repr(override.input_line), "a choice has the name of its group", f"use {top}=CHOICE")
    if top == "hydra" or key.startswith("hydra/"):
        return Problem(key, "Hydra's own settings are not part of a run", "leave it out", "not-permitted")
    if TARGET in key or names_target(override.value()):
        return Problem(key, f"{TARGET} is named by config files only", f"use {top}=CHOICE", "not-permitted")
    if key in known and override.type != OverrideType.DEL and not isinstance(override.value(), str):
        got = f"{short_repr(override.value())} is no choice"
        return Problem(key, got, suggest("", known[key]), "unknown-choice")
    return None


def names_target(value: Any) -> bool:
    return any(TARGET in place for place, _ in walk(value))


def spelling(override: Override, word: str, known: dict[str, list[str]]) -> str:
    """Settings have their defaults in classes, not in YAML, so a plain `key=value` must be allowed to add."""
    top, _, rest = override.key_or_group.partition(".")
    if not rest and top in known:
        return f"~{top}" if override.type == OverrideType.DEL else word.lstrip("+")
    plain = override.type in (OverrideType.CHANGE, OverrideType.ADD)
    return f"++{word.removeprefix('+')}" if plain else word


@dataclass
class Composed:
    """A run as far as Hydra makes it."""

    node: dict[str, Any]
    words: list[str]
    """Those that could be applied."""
    problems: list[Problem]
    filled: frozenset[str] = frozenset()
    """Settings that nobody gave, and that are fitted to the others."""


def _compose_chosen(read: Words, config_dir: Path | None) -> Composed:
    """The run that the arguments make. Choices whose files cannot be read are taken out of them, and named."""
    try:
        return _compose(_base(read.choices, config_dir), read.values)
    except Problems as error:
        found = error.problems
    problems = list[Problem]()
    for key, word in list(read.choices.items()):
        try:
            _compose(_base(STAND_INS | {key: word}, config_dir), [])
        except Problems as error:
            problems += error.problems
            del read.choices[key]
            read.doubtful.add(key.partition(".")[0])
    try:
        composed = _compose(_base(read.choices, config_dir), read.values)
    except Problems:
        return Composed({}, [], found)
    return replace(composed, problems=[*(problems or found), *composed.problems])


def _compose(base: list[str], words: list[str]) -> Composed:
    """The run that the arguments make, and a problem for each that Hydra cannot apply. Raises `Problems` where it is a
    config file that is at fault."""
    sources.install()
    with initialize_config_dir(str(conf_dir()), version_base=None):
        try:
            return _filled(_composed([*base, *words]), words, [])
        except (Problems, *_FAULTS):
            pass  # a config file or some word is at fault; which one shows when each stands alone
        try:
            node = _composed(base)
        except _FAULTS as error:
            raise Problems(_config_fault(error)) from error
        problems, good = list[Problem](), list[str]()
        for word in words:
            faults = _faults([*base, word], word)
            problems += faults
            good += [] if faults else [word]
        if _faults([*base, *good], ""):  # each stands alone, and not all together
            each, good = good, []
            for word in each:
                faults = _faults([*base, *good, word], word)
                problems += faults
                good += [] if faults else [word]
        return _filled(_composed([*base, *good]) if good else node, good, problems)


def _faults(words: list[str], word: str) -> list[Problem]:
    """Why Hydra cannot apply `word`, the last of these."""
    try:
        _composed(words)
    except Problems as found:
        return found.problems
    except _FAULTS as error:
        return [Problem(shortened(word.lstrip("+"), 200), error_message(error))]
    return []


def compose_each(*choices: tuple[Mapping[str, str], Path | None, Sequence[str]]) -> list[dict[str, Any]]:
    """The run of each choices with the settings, a folder of config groups beside ours. Raises `Problems`."""
    with initialize_config_dir(str(conf_dir()), version_base=None):
        try:
            found = [_composed([*_base(chosen, config_dir), *words]) for chosen, config_dir, words in choices]
        except _FAULTS as error:
            raise Problems(_config_fault(error)) from error
    for node in found:
        defaults.fill(node)
    return found


def _composed(words: list[str]) -> dict[str, Any]:
    return sources.resolved(compose("run", words))


def _filled(node: dict[str, Any], words: list[str], problems: list[Problem]) -> Composed:
    return Composed(node, words, problems, defaults.fill(node))


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
