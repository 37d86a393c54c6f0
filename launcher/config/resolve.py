"""Command-line arguments -> Hydra -> RunSpec. May be called from several threads at once."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.override_parser.types import Override
from pydantic import ValidationError

from launcher.config import guard
from launcher.config.arguments import join_options, read_arguments
from launcher.config.compose import choices, compose_chosen
from launcher.config.explain import build
from launcher.config.nodes import flat, walk
from launcher.config.request import RunRequest, SourcedOverride
from launcher.config.slips import FindRun
from launcher.core.classes import add_code_dir
from launcher.core.problems import Problem, Problems, path_repr
from launcher.spec.run import RunSpec

if TYPE_CHECKING:
    from launcher.config.diagnose import IgnoredArguments
    from launcher.config.translate import Taken


@dataclass(frozen=True)
class Resolution:
    """A run, or all that is wrong with the arguments for it."""

    run: RunSpec | None
    """The run; where something is wrong, the run that is left without it, or None."""
    problems: list[Problem]
    ignored: IgnoredArguments | None = None
    """What of the arguments the run that is left does not have."""
    given: frozenset[str] = frozenset()
    """Settings that arguments or config files set, as dotted names."""
    request: RunRequest = field(default_factory=lambda: RunRequest([]))
    """What was asked for, in our names of settings."""
    taken: tuple[Taken, ...] = ()
    """Arguments in another spelling, and what they were taken as."""
    sources: tuple[tuple[SourcedOverride, Override], ...] = ()
    """Each override with the argument that it comes from."""
    files: tuple[tuple[Path, str], ...] = ()
    """The config files in the order in which they are merged (a later one wins), and the place of the run that each is
    put at: `reward.parts.gsm8k`; empty for the run itself."""


def resolve(overrides: Iterable[str], config_dir: Path | None = None) -> RunSpec:
    """`overrides` are Hydra's: `algorithm=grpo` picks a file of conf/algorithm, `sampler.n=8` sets a value.

    `config_dir` adds a folder of config groups to ours. Raises `Problems` with everything that is wrong.
    """
    resolution = try_resolve(overrides, config_dir)
    if resolution.problems or not resolution.run:
        raise Problems(resolution.problems)
    return resolution.run


def try_resolve(overrides: Iterable[str], config_dir: Path | None = None) -> Resolution:
    """The run of these overrides as `resolve` makes it, or everything that is wrong with them."""
    return resolve_request(
        RunRequest([SourcedOverride(word, f"command line: {word}") for word in overrides], config_dir)
    )


def resolve_request(by: RunRequest, find_run: FindRun | None = None) -> Resolution:
    """As `try_resolve`, of a request, which says where each override is from. `find_run` finds the runs that
    `model=NAME` may mean."""
    if len(by.overrides) > guard.WORDS:  # answering all of them would take minutes
        return Resolution(None, guard.separate(by.texts)[1], request=by)
    return _resolve(by, find_run, translate=True)


def _resolve(by: RunRequest, find_run: FindRun | None, *, translate: bool) -> Resolution:
    problems = _problems_of_folder(by.config_dir)
    config_dir = None if problems else by.config_dir
    words = join_options(by.overrides)
    accepted, refused = guard.separate([word.text for word in words])
    add_code_dir(config_dir)
    arguments = read_arguments([word for word in words if word.text in accepted], choices(config_dir), find_run)
    composed = compose_chosen(arguments, config_dir)
    composed.node["code_dir"] = _code_dir(config_dir)
    problems += [*refused, *arguments.problems, *composed.problems]
    given = frozenset(flat(composed.node)) - composed.derived
    found = Resolution(None, problems, given=given, request=by, sources=tuple(arguments.sources), files=composed.files)
    is_complete = {*choices(config_dir)} <= composed.node.keys() and "???" not in dict(walk(composed.node)).values()
    if is_complete and not (problems or arguments.unknown or arguments.no_choices):
        with suppress(ValidationError):  # `diagnose` below finds all that is wrong
            return replace(found, run=build(composed.node, arguments.texts))
    # late: they load the names of other projects, and every class of every choice
    from launcher.config import diagnose  # noqa: PLC0415
    from launcher.config import translate as others  # noqa: PLC0415

    if translate and (translation := others.translated(replace(by, config_dir=config_dir), accepted)):
        found = _resolve(translation.request, find_run, translate=False)
        problems = [*translation.problems, *map(translation.named, found.problems)]
        return replace(found, problems=list(dict.fromkeys(problems)), taken=translation.taken)
    run, problems, ignored = diagnose.diagnose(arguments, composed, problems, config_dir)
    return replace(found, run=run, problems=problems, ignored=ignored)


def _problems_of_folder(config_dir: Path | None) -> list[Problem]:
    if config_dir is None or config_dir.is_dir():
        return []
    got, fix = f"no folder {path_repr(config_dir)}", "use one that holds <group>/<choice>.yaml"
    return [Problem("--config-dir", got, fix, "not-found")]


def _code_dir(config_dir: Path | None) -> str | None:
    """The folder of config groups, where Python files stand beside them."""
    if config_dir and any(path for pattern in ("*.py", "*/*.py") for path in config_dir.glob(pattern)):
        return str(config_dir.resolve())
    return None
