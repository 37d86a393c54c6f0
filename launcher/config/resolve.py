"""Command-line arguments -> Hydra -> RunSpec."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from pydantic import ValidationError

from launcher.config import guard, sources
from launcher.config.arguments import read_arguments
from launcher.config.compose import base_overrides, choices, compose_chosen, config_file, groups
from launcher.config.explain import build
from launcher.config.nodes import flat, walk
from launcher.config.options import separate_options
from launcher.config.recipe import RunRequest, SourcedOverride
from launcher.core.classes import add_code_dir
from launcher.core.files import conf_dir
from launcher.core.problems import Problem, Problems, short_repr
from launcher.spec.run import RunSpec

if TYPE_CHECKING:
    from launcher.config.repair import Repair
    from launcher.config.translate import Taken


@dataclass(frozen=True)
class Resolution:
    """A run, or all that is wrong with the arguments for it."""

    run: RunSpec | None
    """Where something is wrong, the run that is left without it; None where none is left."""
    problems: list[Problem]
    repair: Repair | None = None
    given: frozenset[str] = frozenset()
    """Settings that arguments or config files set."""
    request: RunRequest = field(default_factory=lambda: RunRequest([]))
    """What was asked for, in settings of ours."""
    taken: tuple[Taken, ...] = ()
    """Arguments in another spelling, and what they were taken as."""

    def follows(self, problem: Problem) -> bool:
        """Whether a problem of `run` may be there only because of what was left out."""
        return self.repair is not None and self.repair.follows(problem)


def resolve(overrides: Iterable[str], config_dir: Path | None = None) -> RunSpec:
    """`overrides` are Hydra's: `algorithm=grpo` picks a file of conf/algorithm, `sampler.n=8` sets a value.

    `config_dir` adds a folder of config groups to ours. Raises `Problems` with everything that is wrong.
    """
    found = try_resolve(overrides, config_dir)
    if found.problems or not found.run:
        raise Problems(found.problems)
    return found.run


def try_resolve(overrides: Iterable[str], config_dir: Path | None = None) -> Resolution:
    """The run of these overrides as `resolve` makes it, or everything that is wrong with them."""
    return resolve_request(
        RunRequest([SourcedOverride(word, f"command line: {word}") for word in overrides], config_dir)
    )


def resolve_request(by: RunRequest) -> Resolution:
    """The same of overrides of which it is known where they stand."""
    if len(by.overrides) > guard.WORDS:  # to answer them all would take minutes
        return Resolution(None, guard.separate(by.texts)[1], request=by)
    found = _resolution(by, translate=True)
    return found if found.taken else replace(found, request=by)


def _resolution(by: RunRequest, *, translate: bool) -> Resolution:
    problems, config_dir = list[Problem](), by.config_dir
    if config_dir and not config_dir.is_dir():
        got, fix = f"no folder {short_repr(str(config_dir))}", "use one that holds <group>/<choice>.yaml"
        problems.append(Problem("--config-dir", got, fix, "not-found"))
        config_dir = None
    overrides, options = separate_options(by.texts)
    accepted, refused = guard.separate([*overrides, *(option.argument for option in options)])
    taken = {*accepted}
    if len(overrides) + len(options) > guard.WORDS:
        return Resolution(None, [*problems, *refused])  # to answer them all would take minutes
    readable = [word for word in overrides if word in taken]
    options = [option for option in options if option.argument in taken]
    add_code_dir(config_dir)
    arguments = read_arguments(readable, choices(config_dir))
    arguments.unknown[:0] = options
    composed = compose_chosen(arguments, config_dir)
    problems += [*refused, *arguments.problems, *composed.problems]
    has_code = config_dir and any(path for pattern in ("*.py", "*/*.py") for path in config_dir.glob(pattern))
    composed.node["code_dir"] = str(config_dir.resolve()) if config_dir and has_code else None
    complete = all(group in composed.node for group in groups(config_dir)) and all(
        value != "???" for _, value in walk(composed.node)
    )
    given = frozenset(flat(composed.node)) - composed.derived
    if complete and not (problems or arguments.unknown or arguments.no_choices):
        try:
            return Resolution(build(composed.node, arguments.texts), [], given=given)
        except ValidationError:
            pass  # all that is wrong is found below
    if translate and (found := _translated(replace(by, config_dir=config_dir), readable)):
        return found
    from launcher.config import diagnose  # noqa: PLC0415  # late: names of other projects, every class of every choice

    return Resolution(*diagnose.diagnose(arguments, composed, problems, config_dir), given)


def _translated(by: RunRequest, readable: Sequence[str]) -> Resolution | None:
    """The run of what these overrides stand for in our words; None where all of them are ours, or nobody's."""
    from launcher.config import translate  # noqa: PLC0415  # late: as diagnosing

    if not (made := translate.translated(by, readable)):
        return None
    found = _resolution(made.request, translate=False)
    problems = [*made.problems, *map(made.named, found.problems)]
    return replace(found, problems=list(dict.fromkeys(problems)), request=made.request, taken=made.taken)


def config_files(overrides: Sequence[str], config_dir: Path | None = None) -> list[tuple[Path, str]]:
    """The config files of a run that `resolve` accepts, in the order in which they are merged: a later one wins.

    With each the place of the run that it is put at: `reward.parts.gsm8k`; empty for the run itself.
    """
    arguments = read_arguments(overrides, choices(config_dir))
    sources.install()
    with initialize_config_dir(str(conf_dir()), version_base=None):
        loader = GlobalHydra.instance().config_loader()
        found = loader.compute_defaults_list("run", base_overrides(arguments.choices, config_dir), RunMode.RUN).defaults
    placed = [(one.config_path, one.package or "") for one in found if one.config_path]
    return [(config_file(name, config_dir), place) for name, place in placed if not name.startswith("hydra/")]
