"""Arguments by the names of an engine's own project, taken as ours: with engine=verl, `actor_rollout_ref.rollout.n=5`
is `sampler.n=5`, and what has no counterpart here is passed on in `engine.extra` as it was typed. Loaded only where an
argument of a run with such an engine names no setting of ours.

The table of names says what stands for what. What is known not to work is left as it is: diagnosing says what to type.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.config.arguments import PLAIN, Unknown, parse, read_arguments
from launcher.config.compose import choices, compose_chosen
from launcher.config.known import class_of, has_setting, holders
from launcher.config.names.conversions import RunContext, convert, is_complete, is_off, is_unset
from launcher.config.names.table import Translation, table
from launcher.config.recipe import last_choices
from launcher.config.request import RunRequest, SourcedOverride
from launcher.config.suggestions import LEAVE_OUT, Suggester, readable
from launcher.config.yaml_lines import defaults_choices
from launcher.core.files import conf_dir
from launcher.core.overrides import key_of, literal
from launcher.core.problems import Problem, Problems, shortened
from launcher.spec.algorithm import Algorithm, Kind
from launcher.spec.engine import Engine, OtherNames

EXTRA = "engine.extra"
"""The setting of what is passed on; among the words of the table it stands for the argument as it was typed."""
UNKNOWN = "?"
"""In the table: a value that stands for nothing here."""
OFF = "it is off here, too"


@dataclass(frozen=True)
class Taken:
    """An argument by another project's name, and what it stands for."""

    typed: SourcedOverride
    words: tuple[str, ...]
    """Empty where it is left out."""
    project: str
    note: str = ""
    """Why it is left out, or what else is to be known."""

    @property
    def message(self) -> str:
        if not self.words:
            return f"left out; {self.note}"
        ours = " ".join(word for word in self.words if word != EXTRA)
        passed = f"passed on to {self.project}{f' {self.note}' if self.note else ''}" if EXTRA in self.words else ""
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
    refused: Mapping[str, Problem] = field(default_factory=dict)
    """Keys that the engine does not have, either, and what is wrong with them."""

    def named(self, problem: Problem) -> Problem:
        """The problem, with what was typed for the setting that it is about, or with what the engine says to it."""
        if problem.where in self.refused and problem.got.startswith("no group or setting"):
            return self.refused[problem.where]
        for each in self.taken:
            settings = [word.partition("=")[0].lstrip("+") for word in each.words if word != EXTRA]
            if problem.where in settings and each.typed.text not in each.words:
                return replace(problem, got=f"{problem.got} (typed as {shortened(each.typed.text)})")
        return problem


def translated(by: RunRequest, accepted: Collection[str]) -> Translated | None:
    """The request in our words; None where its engine takes no names but ours, or none of them is typed. `accepted` are
    the arguments that can be read."""
    files = choices(by.config_dir)
    typed = [_typed(word) for word in by.overrides if word.text in accepted]
    chosen = {each.key: each for each in typed if each.key in files}
    name = chosen["engine"].value if "engine" in chosen else defaults_choices(conf_dir() / "run.yaml")["engine"]
    engine = class_of("engine", files["engine"][name]) if name in files["engine"] else Engine
    assert issubclass(engine, Engine)
    return _Translator(by, typed, chosen, files, engine.names).translate() if engine.names else None


@dataclass(frozen=True)
class _Typed:
    word: SourcedOverride
    key: str
    """Without `+` and `~`."""
    value: str

    @property
    def removes(self) -> bool:
        return self.word.text.startswith("~")


@dataclass
class _Translator:
    by: RunRequest
    typed: Sequence[_Typed]
    chosen: Mapping[str, _Typed]
    files: Mapping[str, Mapping[str, Path]]
    names: OtherNames
    derived_by: dict[SourcedOverride, list[str]] = field(default_factory=dict)

    def translate(self) -> Translated | None:
        self.holders = holders(self.files)
        self.given = {self._name(each): each.value for each in self.typed}
        if not (unknown := self._unknown_words()):
            return None
        shared = [each for each in self.typed if each not in unknown and "." in each.key and self._meanings(each.key)]
        derived = self._derived([*unknown, *shared], RunContext(self.given))
        suggester = self._suggester(unknown, derived)
        results = {
            each.word: self._result(each, suggester, each in unknown or self._only_engine_has(each, suggester))
            for each in [*unknown, *shared]
        }
        for word, words in self.derived_by.items():
            if result := results[word]:
                more = [each for each in words if each not in result.words]
                results[word] = replace(result, words=(*more, *result.words))
        refused = {each.key: each.word.text for each in unknown if results[each.word] is None}
        data = self._algorithm(derived).data
        problems = self.names.pass_on([*refused.values()], data, self.given)[1]
        made = self._together(results, data)
        return replace(made, refused={each.where: each for each in problems if each.where in refused})

    def _unknown_words(self) -> list[_Typed]:
        """The arguments by names of the engine's project: those of the table first, then keys that it has, or that
        begin as its keys do."""
        ours = {*self.files, *PLAIN}
        sections = {_section(name) for each in table().meanings for name in each.names.get(self.names.project, ())}
        unknown = [each for each in self.typed if each.key not in (*self.holders, *ours)]
        in_table = [each for each in unknown if self._meanings(each.key) or self._meanings(_above(each.key))]
        others = [each for each in unknown if each not in in_table]
        known = self.names.known([each.word.text for each in others], self.given)
        has = [each for each, is_known in zip(others, known, strict=True) if is_known]
        begin = [each for each in others if each not in has and _section(each.key) in sections - ours]
        return [*in_table, *has, *begin]

    def _meanings(self, key: str) -> tuple[Translation, ...]:
        return tuple(each for each in table().named.get(key, ()) if key in each.names.get(self.names.project, ()))

    def _name(self, typed: _Typed) -> str:
        """The name to look up: today's, of a key of an older version."""
        ours = typed.key in self.holders or self._meanings(typed.key)
        return typed.key if ours else self.names.todays_name(typed.key)

    def _algorithm(self, derived: Mapping[str, str]) -> type[Algorithm]:
        word = derived.get("algorithm") or (self.chosen["algorithm"].word.text if "algorithm" in self.chosen else "")
        file = self.files["algorithm"].get(word.partition("=")[2])
        found = class_of("algorithm", file) if file else None
        return found if found and issubclass(found, Algorithm) else Algorithm

    # ---- choices

    def _derived(self, some: Sequence[_Typed], known: RunContext) -> dict[str, str]:
        """The words for choices that these arguments make, of groups of which none is typed."""
        found = dict[str, str]()
        for each in some:
            name = self._name(each)
            for meaning in (self._meanings(name) or self._meanings(_above(name)))[:1]:
                for word in self._words(meaning, each, known) or ():
                    group, _, choice = word.partition("=")
                    if group not in {**self.chosen, **found} and choice in self.files.get(group, ()):
                        found[group] = word
                        self.derived_by.setdefault(each.word, []).append(word)
        return found | self._default_reward({*self.chosen, *found})

    def _default_reward(self, chosen: Collection[str]) -> dict[str, str]:
        """What scores in a launch of verl's that names no reward: verl's rule of each row's data_source."""
        by_name = {self._name(each): each for each in self.typed}
        ours = "reward" in chosen or any(name.startswith("reward.") and name in self.holders for name in by_name)
        if ours or not {"algorithm.adv_estimator", "data.train_files"} <= {*by_name}:
            return {}
        word = "reward=auto"
        self.derived_by.setdefault(by_name["algorithm.adv_estimator"].word, []).append(word)
        return {"reward": word}

    def _suggester(self, unknown: Sequence[_Typed], derived: Mapping[str, str]) -> Suggester:
        """Of the run that these choices and the other arguments make."""
        ours = [each.word for each in self.typed if each not in unknown]
        more = [SourcedOverride(word, word) for word in derived.values()]
        node = compose_chosen(read_arguments([*ours, *more], self.files), self.by.config_dir).node
        unknown_settings = [Unknown(self._name(each), each.value) for each in unknown]
        missing = [group for group in self.files if group not in node]
        return Suggester(node, self.files, unknown_settings, missing, self.given)

    def _makes_way(self, word: str, words: Sequence[str], typed: _Typed) -> bool:
        """Whether a choice that follows from `typed` makes way for the chosen one: the same, or a kind of it."""
        group, _, choice = word.partition("=")
        chosen = self.chosen.get(group)
        if chosen is None or not {choice, chosen.value} <= {*self.files[group]}:
            return False
        if chosen.value == choice:
            return True
        of_recipe = chosen.word.source != "command line" and typed.word.source == "command line"
        if of_recipe or any(each.startswith(f"{group}.") for each in words):
            return False
        return issubclass(*(class_of(group, self.files[group][each]) for each in (chosen.value, choice)))

    # ---- single arguments

    def _result(self, typed: _Typed, suggester: Suggester, unknown: bool) -> Taken | None:
        """What it is taken as; None where it stays as it is. `unknown`: it is no setting of ours."""
        if unknown and not typed.removes and (below := self._of_mapping(self._name(typed), typed, suggester)):
            return below
        meanings, project = self._meanings(self._name(typed)), self.names.project
        passed_on = Taken(typed.word, (EXTRA,), project) if unknown else None
        if typed.removes or not meanings:
            return passed_on
        if not unknown and is_unset(typed.value):
            return None
        meaning = next((each for each in meanings if suggester.fits(each)), meanings[0])
        known = suggester.run_context()
        words = self._words(meaning, typed, known)
        known_to_engine = meaning.tells_verl(typed.value)
        if words is None or not is_complete(words) or suggester.lacking([word for word in words if word != EXTRA]):
            return None if known_to_engine else passed_on
        if not words and not is_off(typed.value) and not suggester.fits(meaning):
            return passed_on  # what says it better is passed on, too
        words = [word for word in words if not self._makes_way(word, words, typed)]
        if passed_on and not words and not known_to_engine and (is_unset(typed.value) or not meaning.ours):
            return passed_on
        if [word.lower() for word in words] == [typed.word.text.lstrip("+").lower()]:
            return None
        return Taken(typed.word, tuple(words), project, "" if words else _why_left_out(meaning, typed.value, known))

    def _only_engine_has(self, typed: _Typed, suggester: Suggester) -> bool:
        """Whether a setting of other choices is one that the engine takes in this run: `algorithm.lam` of GRPO."""
        return typed.key.partition(".")[0] not in suggester.missing_groups and not has_setting(
            suggester.node, typed.key
        )

    def _of_mapping(self, name: str, typed: _Typed, suggester: Suggester) -> Taken | None:
        """One value of a setting that is a mapping: `reward.custom_reward_function.reward_kwargs.a=1`."""
        above, _, inner = name.rpartition(".")
        meaning = next(iter(self._meanings(above)), None)
        if not meaning or not meaning.ours or not has_setting(suggester.node, f"{meaning.ours[0]}.{inner}"):
            return None
        words = [word for word in meaning.use.split() if "{}" not in word and not self._makes_way(word, (), typed)]
        return Taken(typed.word, (*words, f"{meaning.ours[0]}.{inner}={readable(typed.value)}"), self.names.project)

    def _words(self, meaning: Translation, typed: _Typed, known: RunContext) -> list[str] | None:
        value = readable(typed.value)
        if meaning.tells_verl(value):
            pattern = meaning.with_verl(value)
            return None if pattern is None else [word.replace("{}", value) for word in pattern.split()]
        words = convert(meaning, value, known)
        if words is None and UNKNOWN in meaning.verl_engine:
            return (meaning.verl_engine[UNKNOWN] or "").split()
        return [word for word in words if word != "sampler=vllm"] if words else words

    # ---- all of them

    def _together(self, results: Mapping[SourcedOverride, Taken | None], data: Kind) -> Translated:
        passed = [word for word, result in results.items() if result and EXTRA in result.words]
        arguments, problems = self.names.pass_on([word.text for word in passed], data, self.given)
        now = dict(zip(passed, arguments, strict=True))
        words, extra, taken = list[SourcedOverride](), list[str](), list[Taken]()
        for word in self.by.overrides:
            result = results.get(word)
            if passed and key_of(word.text) == EXTRA and (given := listed(word.text)) is not None:
                extra += given
            elif result is None:
                words.append(word)
            else:
                texts = [text for text in result.words if text != EXTRA]
                words = [each for each in words if each.text not in texts]  # the later one says where it is from
                words += [replace(word, text=text) for text in texts]
                if argument := now.get(word):
                    extra.append(argument)
                    result = replace(result, note="" if argument == word.text else f"as {argument}")
                taken += [result] if argument or word not in now else []
        if extra:
            first, more = passed[0], ", ..." if len(passed) > 1 else ""
            words.append(SourcedOverride(f"{EXTRA}={literal(extra)}", f"{first.where}{more}", passed[-1].source))
        return Translated(replace(self.by, overrides=last_choices(words)), tuple(taken), tuple(problems))


def _typed(word: SourcedOverride) -> _Typed:
    key, _, value = word.text.partition("=")
    return _Typed(word, key.lstrip("+~"), value)


def _section(key: str) -> str:
    return key.partition(".")[0]


def _above(key: str) -> str:
    return key.rpartition(".")[0]


def _why_left_out(meaning: Translation, value: str, known: RunContext) -> str:
    if is_off(value) or is_unset(value):
        return OFF
    if not meaning.ours and meaning.note:
        return meaning.note
    if not meaning.ours and meaning.instead.endswith(f"; {LEAVE_OUT}"):
        return meaning.instead.removesuffix(f"; {LEAVE_OUT}")
    return "another argument says it" if known.says_better(meaning) else "it is so here, too"


def listed(word: str) -> list[str] | None:
    """The arguments of `engine.extra=["key=value"]`; None where it cannot be read."""
    try:
        value = parse(word).value()
    except Problems:
        return None
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]
