"""Arguments in the names of an engine's own project: with engine=verl, `actor_rollout_ref.rollout.n=5` is taken as
`sampler.n=5`.

The table of names says what each name stands for; an older key is looked up by today's name. Choices that the arguments
imply are added where none is typed. What has no counterpart here is passed on in `engine.extra`, by today's name; what
already holds here is left out, with a note. What is known not to work stays as it was typed: diagnosing says what to
type. This module is loaded only where the arguments do not make a run as they are; `translated` is None where the
chosen engine has no names of its own, or none of them is typed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from launcher.config.arguments import parse, read_arguments
from launcher.config.compose import choices, compose_chosen
from launcher.config.names.conversions import RunContext, convert, is_complete, is_off, is_unset
from launcher.config.names.table import Translation, table
from launcher.config.nodes import PLAIN, class_of, has_setting, holders, owner
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
"""The setting that passes arguments on; in the table of names it stands for the argument as it was typed."""
UNKNOWN = "?"
"""In the table of names: any value without a counterpart here."""


@dataclass(frozen=True)
class Taken:
    """An argument by another project's name, and what it stands for."""

    typed: SourcedOverride
    words: tuple[str, ...]
    """Our arguments, and EXTRA where it is passed on; empty where it is left out."""
    project: str
    note: str = ""
    """Why it is left out, or the name by which it is passed on."""

    @property
    def ours(self) -> list[str]:
        return [word for word in self.words if word != EXTRA]

    @property
    def message(self) -> str:
        if not self.words:
            return f"left out; {self.note}"
        ours = " ".join(self.ours)
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

    def named(self, problem: Problem) -> Problem:
        """The problem, with the argument that was typed for its setting."""
        for each in self.taken:
            if problem.where in map(key_of, each.ours) and each.typed.text not in each.words:
                return replace(problem, got=f"{problem.got} (typed as {shortened(each.typed.text)})")
        return problem


def translated(by: RunRequest, accepted: Collection[str]) -> Translated | None:
    """The request in our words; None where its engine takes no names but ours, or none of them is typed. `accepted` are
    the arguments that can be read."""
    files = choices(by.config_dir)
    typed = [word for word in by.overrides if word.text in accepted]
    chosen = {each.key: each for each in typed if each.key in files}
    name = chosen["engine"].value if "engine" in chosen else defaults_choices(conf_dir() / "run.yaml")["engine"]
    engine = class_of("engine", files["engine"][name]) if name in files["engine"] else Engine
    assert issubclass(engine, Engine)
    return _Translator(by, typed, chosen, files, engine.names).translate() if engine.names else None


@dataclass(frozen=True)
class _Translator:
    by: RunRequest
    typed: Sequence[SourcedOverride]
    chosen: Mapping[str, SourcedOverride]
    files: Mapping[str, Mapping[str, Path]]
    names: OtherNames

    def translate(self) -> Translated | None:
        if not self.others:
            return None
        taken = {each: found for each in self.named if (found := self._translate_argument(each))}
        for word, source in self.derived.values():
            if source in taken and word not in taken[source].words:
                taken[source] = replace(taken[source], words=(word, *taken[source].words))
        return self._build_request(taken)

    @cached_property
    def holders(self) -> Mapping[str, Sequence[str]]:
        return holders(self.files)

    @cached_property
    def given(self) -> Mapping[str, str]:
        """Today's name of each argument, and its value."""
        return {self._current_name(each): each.value for each in self.typed}

    @cached_property
    def named(self) -> Sequence[SourcedOverride]:
        """The arguments in names of the project, and those in names of ours that the project has, too."""
        return [each for each in self.typed if each in self.others or ("." in each.key and self._meanings(each.key))]

    @cached_property
    def suggester(self) -> Suggester:
        """Suggestions for the run that our arguments and the derived choices make."""
        ours = [each for each in self.typed if each not in self.others]
        more = [SourcedOverride(word, word) for word, _ in self.derived.values()]
        node = compose_chosen(read_arguments([*ours, *more], self.files), self.by.config_dir).node
        return Suggester(node, self.files, [group for group in self.files if group not in node], self.given)

    @cached_property
    def others(self) -> Sequence[SourcedOverride]:
        """The arguments in names of the engine's project: names of the table, keys of the project, and keys in one of
        its sections."""
        ours = {*self.files, *PLAIN}
        sections = {_section(name) for each in table().meanings for name in each.names.get(self.names.project, ())}
        others = [each for each in self.typed if each.key not in (*self.holders, *ours)]
        has_key = self.names.known([each.text for each in others], self.given)
        return [
            each for each, is_known in zip(others, has_key, strict=True)
            if is_known or self._meaning_of(each.key) or _section(each.key) in sections - ours
        ]  # fmt: skip

    def _meanings(self, key: str) -> tuple[Translation, ...]:
        return tuple(each for each in table().named.get(key, ()) if key in each.names.get(self.names.project, ()))

    def _meaning_of(self, key: str) -> Translation | None:
        """The first meaning of a key, or of the mapping that the key is in."""
        return next(iter(self._meanings(key) or self._meanings(key.rpartition(".")[0])), None)

    def _current_name(self, typed: SourcedOverride) -> str:
        """The name to look up: for a key of an older version, today's name."""
        ours = typed.key in self.holders or self._meanings(typed.key)
        return typed.key if ours else self.names.todays_name(typed.key)

    # ---- choices

    @cached_property
    def derived(self) -> Mapping[str, tuple[str, SourcedOverride]]:
        """Group -> the choice that the arguments imply and the argument, for groups of which none is typed."""
        derived, context = dict[str, tuple[str, SourcedOverride]](), RunContext(self.given)
        for each in self.named:
            meaning = self._meaning_of(self._current_name(each))
            for word in (self._words(meaning, each, context) if meaning else None) or ():
                group, _, choice = word.partition("=")
                if group not in self.chosen and choice in self.files.get(group, ()):
                    derived.setdefault(group, (word, each))
        estimator = next((each for each in self.named if self._current_name(each) == "algorithm.adv_estimator"), None)
        has_settings = any(name.startswith("reward.") and name in self.holders for name in self.given)
        if estimator and "data.train_files" in self.given and "reward" not in self.chosen and not has_settings:
            derived.setdefault("reward", ("reward=auto", estimator))  # as verl scores: by each row's data_source
        return derived

    def _overruled(self, word: str, words: Sequence[str], typed: SourcedOverride) -> bool:
        """Whether the choice `word` that follows from `typed` yields to the chosen one: the same or a subclass."""
        group, _, choice = word.partition("=")
        chosen = self.chosen.get(group)
        if chosen is None or not {choice, chosen.value} <= {*self.files[group]}:
            return False
        overrides_recipe = chosen.source != "command line" and typed.source == "command line"
        if overrides_recipe or any(each.startswith(f"{group}.") for each in words):
            return chosen.value == choice
        return issubclass(*(class_of(group, self.files[group][each]) for each in (chosen.value, choice)))

    # ---- single arguments

    def _translate_argument(self, typed: SourcedOverride) -> Taken | None:
        """What an argument is taken as; None where it stays as it is."""
        is_other_name = typed in self.others
        if not is_other_name and is_unset(typed.value):
            return None
        if _section(typed.key) not in self.suggester.missing_groups:  # then `algorithm.lam` of GRPO is one, too
            is_other_name = is_other_name or not has_setting(self.suggester.node, typed.key)
        words, note = self._read(self._current_name(typed), typed)
        if words is None:
            return Taken(typed, (EXTRA,), self.names.project) if is_other_name else None
        is_same = " ".join(words).lower() == typed.text.lstrip("+").lower()
        return None if is_same else Taken(typed, tuple(words), self.names.project, note)

    def _read(self, name: str, typed: SourcedOverride) -> tuple[list[str] | None, str]:
        """The words for an argument, and why there are none where it is left out; None where it means nothing to us, or
        sets something that the run does not have."""
        meanings, value, run = self._meanings(name), typed.value, self.suggester.run_context()
        if not meanings or typed.text.startswith("~"):
            return self._words_in_mapping(name, typed), ""
        meaning = next(filter(self.suggester.fits, meanings), meanings[0])
        words = self._words(meaning, typed, run)
        if words is None or not is_complete(words) or self.suggester.lacking(words):
            return None, ""
        if words := [word for word in words if not self._overruled(word, words, typed)]:
            return words, ""
        is_off_here = meaning.ours and not is_unset(value) and (is_off(value) or self.suggester.fits(meaning))
        if not is_off_here and meaning.with_verl(value) is None:  # it still means something to the engine
            return None, ""
        return [], _why_left_out(meaning, value, run)

    def _words_in_mapping(self, name: str, typed: SourcedOverride) -> list[str] | None:
        """The words for one value of a setting that is a mapping: `reward.custom_reward_function.reward_kwargs.a=1`."""
        above, _, inner = name.rpartition(".")
        meaning = next(iter(self._meanings(above)), None)
        if not meaning or not meaning.ours or typed.text.startswith("~"):
            return None
        if not has_setting(self.suggester.node, f"{meaning.ours[0]}.{inner}"):
            return None
        words = [word for word in meaning.use.split() if "{}" not in word and not self._overruled(word, (), typed)]
        return [*words, f"{meaning.ours[0]}.{inner}={readable(typed.value)}"]

    def _words(self, meaning: Translation, typed: SourcedOverride, run: RunContext) -> list[str] | None:
        value = readable(typed.value)
        pattern = meaning.with_verl(value)
        if pattern is None:
            words = convert(meaning, value, run)
            if words is not None or UNKNOWN not in meaning.verl_engine:
                return [word for word in words if word != "sampler=vllm"] if words else words
            pattern = meaning.verl_engine[UNKNOWN]
        return [word.replace("{}", value) for word in pattern.split()]

    # ---- all of them

    def _build_request(self, taken: Mapping[SourcedOverride, Taken]) -> Translated:
        """The request with our words in place of the project's, and all that is passed on in one `engine.extra`."""
        passed_on = [word for word, each in taken.items() if EXTRA in each.words]
        arguments, problems = self.names.pass_on([word.text for word in passed_on], self._data_kind(), self.given)
        todays_arguments = dict(zip(passed_on, arguments, strict=True))
        words, extra, reported = list[SourcedOverride](), list[str](), list[Taken]()
        for word in self.by.overrides:
            if word not in taken:
                given_extra = listed(word.text) if passed_on and key_of(word.text) == EXTRA else None
                if given_extra is None:
                    words.append(word)
                else:
                    extra += given_extra
                continue
            ours = taken[word].ours
            words = [other for other in words if other.text not in ours]  # of equal words the last one keeps its source
            words += [replace(word, text=text) for text in ours]
            if word not in todays_arguments:
                reported.append(taken[word])
            elif argument := todays_arguments[word]:
                extra.append(argument)
                reported.append(replace(taken[word], note=f"as {argument}" * (argument != word.text)))
        if extra:
            where = ", ".join([passed_on[0].where, "..."][: len(passed_on)])
            words.append(SourcedOverride(f"{EXTRA}={literal(extra)}", where, passed_on[-1].source))
        return Translated(replace(self.by, overrides=last_choices(words)), tuple(reported), tuple(problems))

    def _data_kind(self) -> Kind:
        """The kind of rows that the chosen algorithm learns from."""
        cls = owner(self.suggester.node, "algorithm.data")[0]
        return cls.data if issubclass(cls, Algorithm) else Algorithm.data


def _section(key: str) -> str:
    return key.partition(".")[0]


def _why_left_out(meaning: Translation, value: str, run: RunContext) -> str:
    if not meaning.ours and not is_off(value) and (reason := meaning.note or meaning.instead):
        return reason.removesuffix(f"; {LEAVE_OUT}")
    return "another argument says it" if run.says_better(meaning, value) else "it is so here, too"


def listed(word: str) -> list[str] | None:
    """The arguments of `engine.extra=["key=value"]`; None where it cannot be read."""
    try:
        value = parse(word).value()
    except Problems:
        return None
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]
