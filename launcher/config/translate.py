"""Arguments in verl's spelling, taken as ours: `actor_rollout_ref.rollout.n=5` is `sampler.n=5`. Loaded only where an
argument names no setting of ours.

The table of names says what stands for what. With an engine that has `extra`, what has no counterpart here is passed on
to it as it was typed. What is known not to work is left as it is: diagnosing says what to type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from launcher.config import guard, run_file
from launcher.config.arguments import PLAIN, given_value, key_of, read_arguments
from launcher.config.compose import choices, compose_chosen
from launcher.config.known import class_of, has_setting, holders
from launcher.config.names.conversions import RunContext, is_complete, is_off, is_unset, to_type
from launcher.config.names.table import Translation, table
from launcher.config.options import Unknown
from launcher.config.recipe import RunRequest, SourcedOverride, last_choices
from launcher.config.suggestions import Suggester, readable
from launcher.config.yaml_lines import defaults_choices
from launcher.core.files import conf_dir
from launcher.core.overrides import literal
from launcher.core.problems import Problem, Problems, shortened
from launcher.engines.verl.config import renamed
from launcher.engines.verl.config.compose import compose
from launcher.engines.verl.config.defaults import MEGATRON, Program
from launcher.spec.algorithm import Algorithm

T = TypeVar("T")
PROJECT = "verl"
PROGRAMS: tuple[Program, ...] = ("ppo", "sft")
EXTRA = "engine.extra"
"""The setting of what is passed on; among the words of the table it stands for the argument as it was typed."""
UNKNOWN = "?"
"""In the table: a value that stands for nothing here."""


LEAVE_OUT, NAMELESS = "leave it out", "no group or setting"
OFF = "it is off here, too"
INSTEAD = f"{LEAVE_OUT}, or use engine={PROJECT}, which takes it"


@dataclass(frozen=True)
class Taken:
    """An argument of verl's, and what it stands for."""

    typed: SourcedOverride
    words: tuple[str, ...]
    """Empty where it is left out."""
    note: str = ""
    """Why it is left out, or what else is to be known."""

    @property
    def key(self) -> str:
        return key_of(self.typed.text)

    @property
    def message(self) -> str:
        if not self.words:
            return f"left out; {self.note}"
        ours = " ".join(word for word in self.words if word != EXTRA)
        passed = f"passed on to {PROJECT}{f' {self.note}' if self.note else ''}" if EXTRA in self.words else ""
        return " and ".join(filter(None, (f"taken as {ours}" if ours else "", passed)))

    @property
    def line(self) -> str:
        return f"{shortened(self.typed.text, 200)}: {self.message}"


@dataclass(frozen=True)
class Translated:
    """A request in our words."""

    request: RunRequest
    taken: tuple[Taken, ...]
    problems: tuple[Problem, ...] = ()
    refused: Mapping[str, Problem | None] = field(default_factory=dict)
    """Keys of verl's that are left as they are, and what is wrong with those that it does not have, either."""

    @property
    def typed(self) -> list[str]:
        """What is typed for a run that exists, in our words."""
        return [word.text for word in self.request.overrides if word.source == "command line"]

    @property
    def lines(self) -> list[str]:
        """One for each argument that was typed in verl's spelling."""
        return [one.line for one in self.taken if one.typed.source == "command line"]

    def applied(self, make: Callable[[list[str]], T]) -> T:
        """What `make` makes of `typed`. Raises `Problems` with all that is wrong, by the names that were typed."""
        problems = list(self.problems)
        try:
            made = make(self.typed)
        except Problems as error:
            raise Problems([*problems, *map(self.named, error.problems)]) from error
        if problems:
            raise Problems(problems)
        return made

    def named(self, problem: Problem) -> Problem:
        """The problem, with what was typed for the setting that it is about, or with what verl would say to it."""
        if problem.where in self.refused:
            own = self.refused[problem.where]
            if problem.got.startswith(NAMELESS):
                return own or replace(
                    problem, got=f"is {PROJECT}'s name, and nothing here is of that kind", fix=INSTEAD
                )
            return problem if own else replace(problem, fix=INSTEAD.join(problem.fix.rsplit(LEAVE_OUT, 1)))
        for one in self.taken:
            settings = [word.partition("=")[0].lstrip("+") for word in one.words if word != EXTRA]
            if problem.where in settings and one.typed.text not in one.words:
                return replace(problem, got=f"{problem.got} (typed as {shortened(one.typed.text)})")
        return problem


def for_stored_run(spec: Path, node: Mapping[str, Any], overrides: Sequence[str]) -> Translated:
    """The arguments for a run that exists, in our words; `node` are its settings, `spec` is its spec.yaml. Raises
    `Problems`."""
    typed = [SourcedOverride(word, f"command line: {word}") for word in overrides]
    if all(has_setting(node, key_of(word)) for word in overrides):
        return Translated(RunRequest(typed), ())
    stored, config_dir = run_file.arguments_of(spec, None)
    words = [*(SourcedOverride(word, f"{spec}:{line}", "run") for word, line in stored), *typed]
    made = translated(RunRequest(words, config_dir), guard.separate([word.text for word in words])[0])
    return made or Translated(RunRequest(typed), ())


def translated(by: RunRequest, taken: Collection[str]) -> Translated | None:
    """The request in our words; None where nothing of it is in verl's spelling. `taken` are the arguments that can be
    read."""
    return _Translator(by, taken).made()


@dataclass(frozen=True)
class _Typed:
    word: SourcedOverride
    key: str
    """Without `+` and `~`."""
    value: str

    @property
    def removes(self) -> bool:
        return self.word.text.startswith("~")


class _Translator:
    def __init__(self, by: RunRequest, taken: Collection[str]) -> None:
        self.by = by
        self.files = choices(by.config_dir)
        self.holders = holders(self.files)
        self.typed = [_typed(word) for word in by.overrides if word.text in taken]
        self.chosen = {one.key: one for one in self.typed if one.key in self.files}
        default = defaults_choices(conf_dir() / "run.yaml")["engine"]
        engine = self.chosen["engine"].value if "engine" in self.chosen else default
        self.passes_on = engine in self.holders.get(EXTRA, ())
        self.derived_by = dict[SourcedOverride, list[str]]()

    def made(self) -> Translated | None:
        theirs = [one for one in self.typed if self._is_theirs(one)]
        if self.passes_on:
            theirs += self._known_to_verl([one for one in self.typed if self._is_nobodys(one)])
        if not theirs:
            return None
        shared = [one for one in self.typed if one not in theirs and "." in one.key and _meanings(one.key)]
        given = {self._name(one): one.value for one in self.typed}
        derived = self._derived([*theirs, *shared], RunContext(given))
        suggester = self._suggester(theirs, derived, given)
        program = _program(derived.get("algorithm") or self._algorithm(), self.files)
        results = {
            one.word: self._result(one, suggester, one in theirs or self._only_verl_has(one, suggester))
            for one in [*theirs, *shared]
        }
        for word, choices_of_it in self.derived_by.items():
            if result := results[word]:
                words = [each for each in choices_of_it if each not in result.words]
                results[word] = replace(result, words=(*words, *result.words))
        made = self._together(results, program)
        refused = [one for one in theirs if results[one.word] is None]
        problems = as_passed_on([one.word.text for one in refused], program, self._engine_words(program))[1]
        unknown = {each.where: each for each in problems}
        return replace(made, refused={one.key: unknown.get(one.key) for one in refused})

    # ---- whose words they are

    def _is_theirs(self, one: _Typed) -> bool:
        top = one.key.partition(".")[0]
        if one.key in self.holders or one.key in (*self.files, *PLAIN):
            return False
        known = _meanings(one.key) or _meanings(_above(one.key))
        return bool(known) or (top not in (*self.files, *PLAIN) and top in _sections())

    def _is_nobodys(self, one: _Typed) -> bool:
        """Whether neither a setting of ours nor the table has this name."""
        return one.key not in (*self.holders, *self.files, *PLAIN) and not self._is_theirs(one)

    def _known_to_verl(self, some: Sequence[_Typed]) -> list[_Typed]:
        """Those whose keys one of verl's programs has, or had."""
        arguments = [one.word.text for one in some]
        passed = [as_passed_on(arguments, program, self._engine_words(program))[0] for program in PROGRAMS]
        return [one for one, *texts in zip(some, *passed, strict=True) if any(texts)]

    def _engine_words(self, program: Program) -> list[str]:
        """What verl's config is composed with: it has the keys of one training backend."""
        typed = {self._name(one): one.value.lower() for one in self.typed}
        backends = [typed.get(name) for name in ("engine.strategy", "model_engine", "actor_rollout_ref.actor.strategy")]
        return list(MEGATRON[program]) if "megatron" in backends else []

    def _name(self, one: _Typed) -> str:
        """The name to look up: today's, of a key of an older verl."""
        if one.key in self.holders or _meanings(one.key):
            return one.key
        return next((new for program in PROGRAMS if (new := _todays_name(one.key, program))), one.key)

    def _algorithm(self) -> str:
        return self.chosen["algorithm"].word.text if "algorithm" in self.chosen else ""

    # ---- choices

    def _derived(self, some: Sequence[_Typed], known: RunContext) -> dict[str, str]:
        """The words for choices that these arguments make, of groups of which none is typed."""
        found = dict[str, str]()
        for one in some:
            name = self._name(one)
            for meaning in (_meanings(name) or _meanings(_above(name)))[:1]:
                for word in self._words(meaning, one, known) or ():
                    group, _, choice = word.partition("=")
                    if group not in {**self.chosen, **found} and choice in self.files.get(group, ()):
                        found[group] = word
                        self.derived_by.setdefault(one.word, []).append(word)
        return found | self._default_reward({*self.chosen, *found})

    def _default_reward(self, chosen: Collection[str]) -> dict[str, str]:
        """What scores in a launch of verl's that names no reward: verl's rule of each row's data_source."""
        by_name = {self._name(one): one for one in self.typed}
        ours = "reward" in chosen or any(name.startswith("reward.") and name in self.holders for name in by_name)
        if ours or not {"algorithm.adv_estimator", "data.train_files"} <= {*by_name}:
            return {}
        self.derived_by.setdefault(by_name["algorithm.adv_estimator"].word, []).append(word := "reward=auto")
        return {"reward": word}

    def _suggester(self, theirs: Sequence[_Typed], derived: Mapping[str, str], given: Mapping[str, str]) -> Suggester:
        """Of the run that these choices and the other arguments make."""
        ours = [one.word.text for one in self.typed if one not in theirs]
        arguments = read_arguments([*ours, *derived.values()], self.files)
        node = compose_chosen(arguments, self.by.config_dir).node
        unknown = [Unknown(self._name(one), one.value) for one in theirs]
        missing = [group for group in self.files if group not in node]
        return Suggester(node, self.files, unknown, missing, given)

    def _makes_way(self, word: str, words: Sequence[str], one: _Typed) -> bool:
        """Whether a choice that follows from `one` makes way for the typed one: that is the same, or a kind of it."""
        group, _, choice = word.partition("=")
        typed = self.chosen.get(group)
        if typed is None or not {choice, typed.value} <= {*self.files[group]}:
            return False
        if typed.value == choice:
            return True
        of_recipe = typed.word.source != "command line" and one.word.source == "command line"
        if of_recipe or any(each.startswith(f"{group}.") for each in words):
            return False
        return issubclass(*(class_of(group, self.files[group][each]) for each in (typed.value, choice)))

    # ---- one argument

    def _result(self, one: _Typed, suggester: Suggester, of_verl: bool) -> Taken | None:
        """What it is taken as; None where it stays as it is. `of_verl`: it is no setting of ours."""
        if of_verl and not one.removes and (below := self._of_mapping(self._name(one), one, suggester)):
            return below
        meanings = _meanings(self._name(one))
        passed_on = Taken(one.word, (EXTRA,)) if self.passes_on and of_verl else None
        if one.removes or not meanings:
            return passed_on
        if not of_verl and is_unset(one.value):
            return None
        meaning = next((each for each in meanings if suggester.fits(each)), meanings[0])
        known = suggester.run_context()
        words = self._words(meaning, one, known)
        known_to_engine = self.passes_on and meaning.tells_verl(one.value)
        if words is None or not is_complete(words) or suggester.lacking([word for word in words if word != EXTRA]):
            if words is not None and not self.passes_on and is_off(one.value):
                return Taken(one.word, (), OFF)
            return None if known_to_engine else passed_on
        if passed_on and not words and not is_off(one.value) and not suggester.fits(meaning):
            return passed_on  # what says it better is passed on, too
        words = [word for word in words if not self._makes_way(word, words, one)]
        if passed_on and not words and not known_to_engine and (is_unset(one.value) or not meaning.ours):
            return passed_on
        if [word.lower() for word in words] == [one.word.text.lstrip("+").lower()]:
            return None
        return Taken(one.word, tuple(words), "" if words else _why_left_out(meaning, one.value, known))

    def _only_verl_has(self, one: _Typed, suggester: Suggester) -> bool:
        """Whether a setting of other choices of ours is one that verl takes in this run: `algorithm.lam` of GRPO."""
        here = one.key.partition(".")[0] in suggester.missing_groups or has_setting(suggester.node, one.key)
        return self.passes_on and not here

    def _of_mapping(self, name: str, one: _Typed, suggester: Suggester) -> Taken | None:
        """One value of a setting that is a mapping: `reward.custom_reward_function.reward_kwargs.a=1`."""
        above, _, inner = name.rpartition(".")
        meaning = next(iter(_meanings(above)), None)
        if not meaning or not meaning.ours or not has_setting(suggester.node, f"{meaning.ours[0]}.{inner}"):
            return None
        words = [word for word in meaning.use.split() if "{}" not in word and not self._makes_way(word, (), one)]
        return Taken(one.word, (*words, f"{meaning.ours[0]}.{inner}={readable(one.value)}"))

    def _words(self, meaning: Translation, one: _Typed, known: RunContext) -> list[str] | None:
        value = readable(one.value)
        if self.passes_on and meaning.tells_verl(value):
            pattern = meaning.with_verl(value)
            return None if pattern is None else [word.replace("{}", value) for word in pattern.split()]
        words = to_type(meaning, value, known)
        if words is None and self.passes_on and UNKNOWN in meaning.verl_engine:
            return (meaning.verl_engine[UNKNOWN] or "").split()
        return [word for word in words or () if word != "sampler=vllm"] if self.passes_on and words else words

    # ---- all of them

    def _together(self, results: Mapping[SourcedOverride, Taken | None], program: Program) -> Translated:
        passed = [word for word, result in results.items() if result and EXTRA in result.words]
        arguments, problems = as_passed_on([word.text for word in passed], program, self._engine_words(program))
        now = dict(zip(passed, arguments, strict=True))
        made, extra, taken = list[SourcedOverride](), list[str](), list[Taken]()
        for word in self.by.overrides:
            result = results.get(word)
            if passed and key_of(word.text) == EXTRA and (given := listed(word.text)) is not None:
                extra += given
            elif result is None:
                made.append(word)
            else:
                texts = [text for text in result.words if text != EXTRA]
                made = [each for each in made if each.text not in texts]  # the later one says where it is from
                made += [replace(word, text=text) for text in texts]
                if argument := now.get(word):
                    extra.append(argument)
                    result = replace(result, note="" if argument == word.text else f"as {argument}")
                taken += [result] if argument or word not in now else []
        if extra:
            first, more = passed[0], ", ..." if len(passed) > 1 else ""
            made.append(SourcedOverride(f"{EXTRA}={literal(extra)}", f"{first.where}{more}", passed[-1].source))
        return Translated(replace(self.by, overrides=last_choices(made)), tuple(taken), tuple(problems))


def _program(word: str, files: Mapping[str, Mapping[str, Path]]) -> Program:
    """Which of verl's programs trains with the chosen algorithm."""
    file = files["algorithm"].get(word.partition("=")[2])
    algorithm = class_of("algorithm", file) if file else Algorithm
    return "sft" if issubclass(algorithm, Algorithm) and algorithm.data == "answers" else "ppo"


def _typed(word: SourcedOverride) -> _Typed:
    key, _, value = word.text.partition("=")
    return _Typed(word, key.lstrip("+~"), value)


def _meanings(key: str) -> tuple[Translation, ...]:
    """Of a name of verl's."""
    return tuple(each for each in table().named.get(key, ()) if key in each.names.get(PROJECT, ()))


@cache
def _sections() -> frozenset[str]:
    """What verl's names begin with."""
    return frozenset(name.partition(".")[0] for each in table().meanings for name in each.names.get(PROJECT, ()))


def _why_left_out(meaning: Translation, value: str, known: RunContext) -> str:
    if is_off(value) or is_unset(value):
        return OFF
    if not meaning.ours and meaning.note:
        return meaning.note
    if not meaning.ours and meaning.instead.endswith(f"; {LEAVE_OUT}"):
        return meaning.instead.removesuffix(f"; {LEAVE_OUT}")
    return "another argument says it" if known.says_better(meaning) else "it is so here, too"


# ---- what is passed on


def as_passed_on(
    arguments: Sequence[str], program: Program, more: Sequence[str] = ()
) -> tuple[list[str], list[Problem]]:
    """The arguments by today's keys, empty for each that verl does not know, and the problems with those. `more` are
    composed with them."""
    unknown = {each.where for each in _unknown(arguments, program, more)}
    now = []
    for text in arguments:
        new = _todays_name(key_of(text), program) if key_of(text) in unknown else None
        now.append(f"{new}={text.partition('=')[2]}" if new else text)
    problems = _unknown(now, program, more) if unknown else []
    wrong = {each.where for each in problems}
    return ["" if key_of(text) in wrong else text for text in now], problems


def _unknown(arguments: Sequence[str], program: Program, more: Sequence[str]) -> list[Problem]:
    """The problems with keys that verl's config has not, or that verl does not read."""
    keys = {key_of(text) for text in arguments}
    whole = (*more, *arguments)
    return [problem for problem in _problems_of_keys(whole, program) if problem.where in keys] if arguments else []


@lru_cache(64)  # 0.2 s
def _problems_of_keys(arguments: tuple[str, ...], program: Program) -> list[Problem]:
    return [problem for problem in compose(arguments, program).problems if problem.code == "unknown-setting"]


def _above(key: str) -> str:
    return key.rpartition(".")[0]


def _todays_name(key: str, program: Program) -> str | None:
    return renamed.ignored(key) or renamed.today(program, key)


def listed(word: str) -> list[str] | None:
    """The arguments of `engine.extra=["key=value"]`; None where it cannot be read."""
    try:
        value = given_value(word).value
    except Problems:
        return None
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]
