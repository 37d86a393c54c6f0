"""What to type in place of an argument that names no setting: a name of another project, or one that is misspelt."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher, get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from launcher.config.arguments import OPTIONS, PLAIN, Unknown, parse
from launcher.config.descriptions import fields_of
from launcher.config.explain import refusal
from launcher.config.known import class_of, has_setting, holders
from launcher.config.names.conversions import RunContext, convert, dataset_words, is_complete, is_off
from launcher.config.names.table import Translation, table
from launcher.config.nodes import owner
from launcher.core.overrides import quoted
from launcher.core.problems import Problem, Problems, nearest, short_repr, suggest, without_style
from launcher.spec.run import RunSpec

LEAVE_OUT = "leave it out"
LONGEST = 100  # characters of a value that is shown in a suggestion
CHOICE_OF_SETTING = {
    "model.path": "model=hf", "data.repo": "data=hub", "data.train_files": "data=files", "data.val_files": "data=files",
}  # fmt: skip
"""Settings that tell which choice was meant where there is none."""
SECTIONS = ("trainer", "training", "train", "args", "training_args", "config", "cfg")
"""What may stand before a setting's name without changing its meaning."""
_SAFE = re.compile(r"[\w@%+=:,./-]+")  # in every shell; zsh takes [...] for a pattern


@dataclass(frozen=True)
class Suggestion:
    problem: Problem
    overrides: tuple[str, ...] = ()
    """Arguments that can stand for the wrong one; empty where it takes a person to say."""
    certain: bool = False
    """Whether these are what was meant, beyond doubt."""


@dataclass
class Suggester:
    """Suggestions for one run, as far as it is known: `node` is its settings without the unknown ones."""

    node: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Path]]
    """The choices of each config group, with their files."""
    unknown: Sequence[Unknown] = ()
    missing_groups: Sequence[str] = ()
    """Groups whose choice is not known."""
    typed: Mapping[str, str] = field(default_factory=dict)
    """All settings that are typed, whoever's names they are -> values."""

    @cached_property
    def holders(self) -> dict[str, list[str]]:
        return holders(self.files)

    def suggestions(self) -> list[Suggestion]:
        return [self.suggestion(one) for one in self.unknown]

    def suggestion(self, one: Unknown) -> Suggestion:
        if one.dashes and one.key.startswith("no-") and one.value == "true":
            return self.suggestion(replace(one, key=one.key.removeprefix("no-"), value="false"))
        if one.dashes and (option := get_close_matches(f"--{one.key}", OPTIONS, n=1, cutoff=0.8)):
            return Suggestion(Problem(one.shown, "no such option", f"did you mean {option[0]}?", "unknown-setting"))
        ways = (
            self._by_name, self._by_part_of_name, self._setting_of_run, self._setting_of_others, self._group_of_name,
            self._similar,
        )  # fmt: skip
        found = next((answer for way in ways if (answer := way(one))), None)
        return found or Suggestion(Problem(one.shown, self._unknown(one), self._all(one), "unknown-setting"))

    def named(self, problem: Problem, values: Mapping[str, str]) -> list[Problem]:
        """The problem, or where it is about the name of a setting that was typed, what to type instead.

        `values` are those of all settings that were typed.
        """
        below = [Unknown(key, value) for key, value in values.items() if f"{key}.".startswith(f"{problem.where}.")]
        if of_others := [(one, found.problem) for one in below if (found := self._by_name(one))]:
            return [
                replace(answer, got=problem.got) if one.plain in self.holders else answer for one, answer in of_others
            ]
        if problem.code != "unknown-setting":
            return [next((replace(problem, fix=fix) for one in below if (fix := self._value_of_others(one))), problem)]
        return [self.suggestion(one).problem for one in below] or [problem]

    def _value_of_others(self, one: Unknown) -> str:
        """What to type for a setting of ours with the value of another project: `model.dtype=bf16`."""
        known = (each for each in table().meanings if each.ours == (one.plain,) and one.value in (each.values or ()))
        words = next((convert(meaning, one.value, self.run_context()) for meaning in known), None)
        known_otherwise = words and words[0].partition("=")[0] == one.plain and words != [f"{one.plain}={one.value}"]
        return f"use {shell_text(words)}" if words and known_otherwise else ""

    # ---- names of other projects

    def _by_name(self, one: Unknown) -> Suggestion | None:
        named = table().named
        name = next((each for each in (one.plain, one.plain.lower()) if each in named), None)
        return self._translated(one, name, named[name]) if name else None

    def _by_part_of_name(self, one: Unknown) -> Suggestion | None:
        name, meanings = self._find(one.plain.lower())
        if not meanings or (self._same_elsewhere(one) and not any(map(self.fits, meanings))):
            return None
        found = self._translated(one, name, meanings)
        own = self._setting_of_run(one)
        return None if found and not found.overrides and own and own.certain else found

    def _find(self, key: str) -> tuple[str, tuple[Translation, ...]]:
        """The name that `key` ends with, or that ends with `key`, and its meanings."""
        name, meanings = table().with_end(key)
        if meanings:
            return name, meanings
        section, _, name = key.rpartition(".")
        meanings = table().named.get(name, ())
        fits = section in SECTIONS or section in table().sections(name)
        found = tuple(each for each in meanings if fits or section in _groups_of(each))
        return (name, found) if found else table().above(key)

    def _translated(self, one: Unknown, name: str, meanings: Sequence[Translation]) -> Suggestion | None:
        """The first meaning whose setting this run has; nothing where that is what was typed."""
        usable = [meaning for meaning in meanings if self.fits(meaning)]
        meaning = (usable or meanings)[0]
        if meaning.ours[:1] == (one.plain,) and not meaning.instead:
            return None
        words = convert(meaning, readable(one.value), self.run_context())
        if words == [f"{one.plain}={one.value}"]:
            return None
        whose = "" if name in self.holders else table().owner(name)
        typed_so = name in (one.plain, one.plain.lower())
        got = f"{'' if typed_so else f'{name} '}is {whose}'s name" if whose else self._unknown(one)
        if not words:
            return Suggestion(Problem(one.shown, got, self._without_words(one, meaning, words), "unknown-setting"))
        words, certain = self._with_choices(words)
        if lacking := self.lacking(words):
            typed = False
            if lacking.partition(".")[0] not in self.missing_groups:
                fix = LEAVE_OUT if is_off(one.value) else f"{lacking} is a setting {self._of_choices(lacking)}"
                return Suggestion(Problem(one.shown, got, fix, "unknown-setting"))
        else:
            typed = is_complete(words) and (not meaning.use or "{}" in meaning.use)  # others are examples
        note = "; ".join(filter(None, (meaning.note, self._of_choices(lacking) if lacking else "")))
        fix = (
            f"use {shell_text(words)}{f' ({note})' if note else ''}"
            if certain
            else f"did you mean {shell_text(words)}?"
        )
        problem = Problem(one.shown, got, fix, "unknown-setting")
        return Suggestion(problem, tuple(words) if typed else (), certain)

    def _without_words(self, one: Unknown, meaning: Translation, words: list[str] | None) -> str:
        """What to do where the value has no counterpart."""
        if words is not None:  # off, which it is here anyway; a reason holds then too, an advice what to use does not
            return meaning.instead if not meaning.ours and meaning.instead.endswith(LEAVE_OUT) else LEAVE_OUT
        if meaning.instead:
            return meaning.instead
        if lacking := self.lacking([meaning.ours[0]]):
            return LEAVE_OUT if is_off(one.value) else f"{lacking} is a setting {self._of_choices(lacking)}"
        return f"use {meaning.ours[0]}=VALUE"

    def _with_choices(self, words: Sequence[str]) -> tuple[list[str], bool]:
        """The words with choices that there are, and whether they are what was meant beyond doubt."""
        found, certain = list[str](), True
        for word in words:
            group, _, choice = word.partition("=")
            if group in self.files and choice not in self.files[group]:
                near = nearest(choice, list(self.files[group]))
                certain &= near is None or without_style(near) == without_style(choice)
                unknown = ["data=files", "data.train_files=FILE"] if group == "data" else [f"{group}=CHOICE"]
                found += [f"{group}={near}"] if near else unknown
            else:
                found.append(word)
        return found, certain

    def lacking(self, words: Sequence[str]) -> str:
        """The first setting of these words that the run has not, with the choices that are among the words."""
        names = [word.partition("=")[0] for word in words]
        return next((name for name in names if name.partition(".")[0] not in names and not self._is_there(name)), "")

    def _is_there(self, name: str) -> bool:
        """Whether the run has a setting or group, whatever is chosen where nothing is."""
        top = name.partition(".")[0]
        if top in self.missing_groups:
            return set(self.holders.get(name, ())) == set(self.files[top])
        return "." not in name or has_setting(self.node, name)

    def fits(self, meaning: Translation) -> bool:
        """Whether the run has the setting, or gets it by the choice that is typed with it."""
        name = next(iter(meaning.ours), "")
        return "." not in name or f"{name.partition('.')[0]}=" in meaning.use or has_setting(self.node, name)

    def _of_choices(self, name: str) -> str:
        top, choices = name.partition(".")[0], self.holders.get(name, [])
        shown = ", ".join(choices[:4]) + (", ..." if len(choices) > 4 else "")
        return f"of {top}={shown}" if choices else ""  # empty where every run has it

    def run_context(self) -> RunContext:
        """What is known of the run for all that is typed."""
        typed = {**self.typed, **{one.plain: one.value for one in self.unknown}}
        hardware = self.node.get("hardware") or {}
        gpus = _count(hardware.get("n_gpus_per_node"))
        return RunContext(
            given={self._full_name(key): value for key, value in typed.items()},
            processes=_count(hardware.get("nproc_per_node"), gpus or 1),
            nodes=_count(hardware.get("nnodes"), 1),
            has_gpus=gpus > 0,
            sharded=self._value("engine.strategy") == "fsdp2",
            steps=_count(self._value("trainer.total_training_steps")) or None,
            prompt_length=_count(self._value("data.max_prompt_length"), 512),
        )

    def _full_name(self, key: str) -> str:
        """Of a name that is typed in part, or below something else: `max_steps` for `trainer.max_steps`."""
        plain = key.lower()
        if plain in table().named or plain in self.holders:
            return plain
        name, meanings = self._find(plain)
        return name if meanings else plain

    def _value(self, name: str) -> Any:
        """The value of a setting of the run, or its class's default."""
        node: Any = self.node
        for key in name.split("."):
            node = node.get(key) if isinstance(node, Mapping) else None
        if node is not None or not has_setting(self.node, name):
            return node
        cls, below = owner(self.node, name)
        declared = fields_of(cls).get(below)
        return declared.get_default(call_default_factory=True, validated_data={}) if declared else None

    # ---- names of ours

    def _setting_of_run(self, one: Unknown) -> Suggestion | None:
        """A setting of this run with the same last name: the one that is meant where only its group is missing or
        wrong, not beyond doubt where it is below something else, such as validation."""
        place, of_others = one.plain.rpartition(".")[0], self._same_elsewhere(one)
        same = self._of_parts(one) if of_others else self._same_leaf(one)  # not of another choice
        here = [name for name in same if self._has(name)]
        if not here:
            return None
        groups = (*self.files, *PLAIN)
        if place in ("", *groups, *SECTIONS) or has_setting(self.node, place) or nearest(place, groups, cutoff=0.75):
            words = (f"{here[0]}={readable(one.value)}",)
            got = "arguments have no dashes" if one.dashes and one.plain == here[0] else self._unknown(one)
            return Suggestion(Problem(one.shown, got, f"use {shell_text(words)}", "unknown-setting"), words, True)
        if of_others:
            return None
        return Suggestion(Problem(one.shown, self._unknown(one), f"did you mean {here[0]}?", "unknown-setting"))

    def _setting_of_others(self, one: Unknown) -> Suggestion | None:
        same = self._same_elsewhere(one) or (self._same_leaf(one) if len(one.plain) > 2 else [])
        top, _, rest = one.plain.partition(".")
        of_group = [name.partition(".")[2] for name in self._of_run if name.startswith(f"{top}.")]
        if not same or (same != [one.plain] and nearest(rest, of_group, cutoff=0.85)):
            return None
        if choice := CHOICE_OF_SETTING.get(same[0]):
            fix = f"use {shell_text([choice, f'{same[0]}={readable(one.value)}'])}"
            return Suggestion(Problem(one.shown, self._unknown(one), fix, "unknown-setting"))
        fix = f"{same[0]} is a setting {self._of_choices(same[0])}"
        if expected := self._expected(same[0], one):
            fix += f", and takes {expected}"
        return Suggestion(Problem(one.shown, self._unknown(one), fix, "unknown-setting"))

    def _expected(self, name: str, one: Unknown) -> str:
        """What a setting of other choices takes, where it does not take this value."""
        (group, _, below), choices = name.partition("."), self.holders[name]
        declared = fields_of(class_of(group, self.files[group][choices[0]])).get(below) if choices else None
        try:
            return refusal(declared, parse(one.argument).value(), one.value) if declared else ""
        except Problems:  # no argument
            return ""

    def _same_elsewhere(self, one: Unknown) -> list[str]:
        """The setting itself, where a choice has it that is not this run's."""
        return [one.plain] if self.holders.get(one.plain) and not self._has(one.plain) else []

    def _same_leaf(self, one: Unknown) -> list[str]:
        """Settings with the same last name, those of the same group first, and of its parts before all."""
        top, leaf = one.plain.partition(".")[0], one.plain.rpartition(".")[2].lower()
        same = [name for name in self.holders if name == leaf or name.endswith(f".{leaf}")]
        same.sort(key=lambda name: (not name.startswith(f"{top}."), name.count(".")))
        return [*self._of_parts(one), *same]

    def _of_parts(self, one: Unknown) -> list[str]:
        """Settings with the same last name of the group's parts."""
        top, leaf = one.plain.partition(".")[0], one.plain.rpartition(".")[2].lower()
        parts = (self.node.get(top) or {}).get("parts") if top in self.files else None
        names = (f"{top}.parts.{part}.{leaf}" for part in parts or {})
        return [name for name in names if has_setting(self.node, name)]

    def _group_of_name(self, one: Unknown) -> Suggestion | None:
        """A config group that is misspelt, or whose choice follows two dashes."""
        groups = list(self.files)
        top = one.plain if one.plain in groups else nearest(one.plain, groups, cutoff=0.75)
        if not top or "." in one.plain:
            return None
        value = one.value if one.value in self.files[top] else nearest(one.value, list(self.files[top])) or one.value
        words = (f"{top}={value}",)
        got = "arguments have no dashes" if one.dashes and one.plain == top else self._unknown(one)
        return Suggestion(Problem(one.shown, got, f"did you mean {shell_text(words)}?", "unknown-setting"), words)

    def _similar(self, one: Unknown) -> Suggestion | None:
        """The most alike setting of this run, or name of others where that is more alike."""
        setting, named, leaf = self._similar_setting(one), table().named, one.plain.lower().rpartition(".")[2]
        near = next(iter(get_close_matches(leaf, list(named), n=1, cutoff=0.85)), "")
        ours = (setting or "").rpartition(".")[2]
        own = 1.0 if sorted(ours) == sorted(leaf) else max(_ratio(leaf, ours), _ratio(one.plain, setting or ""))
        of_group = f"{one.plain.lower().removesuffix(leaf)}{near}"  # `data.batch_size`
        near, ratio = of_group if of_group in named else near, _ratio(leaf, near)
        found = self._translated(one, near, named[near]) if near and (own < ratio < 1 or not setting) else None
        if found and (found.problem.fix != LEAVE_OUT or not setting):
            fix = f"did you mean {near}? {found.problem.fix}"
            return Suggestion(Problem(one.shown, self._unknown(one), fix, "unknown-setting"), found.overrides)
        if not setting:
            return None
        words = (f"{setting}={readable(one.value)}",)
        return Suggestion(
            Problem(one.shown, self._unknown(one), f"did you mean {shell_text(words)}?", "unknown-setting"), words
        )

    def _similar_setting(self, one: Unknown) -> str | None:
        """The most alike setting of this run, those of the same group first."""
        top, _, rest = one.plain.lower().partition(".")
        here = self._of_run
        local = {name.partition(".")[2]: name for name in here if name.startswith(f"{top}.")}
        whole = {name: name for name in here} | {name.rpartition(".")[2]: name for name in reversed(here)}
        cls, key = owner(self.node, one.plain)
        inside = {} if cls is RunSpec else {name: f"{one.plain.removesuffix(key)}{name}" for name in fields_of(cls)}
        near = _most_alike(key, inside, 0.7) or _most_alike(rest, local, 0.7)
        near = near or (None if local else _most_alike(one.plain.lower(), whole, 0.7))
        return near or _most_alike(rest.rpartition(".")[2], whole, 0.75) or _most_alike(rest, local, 0.65)

    @cached_property
    def _of_run(self) -> list[str]:
        return [name for name in self.holders if self._has(name)]

    def _has(self, name: str) -> bool:
        """Whether the run has a setting, or may have it."""
        return name.partition(".")[0] in self.missing_groups or has_setting(self.node, name)

    def _unknown(self, one: Unknown) -> str:
        top, _, rest = one.key.partition(".")
        if rest and top in self.missing_groups:
            return f"no choice of {top} has a setting {short_repr(rest)}"
        if rest and top in (*self.files, *PLAIN):
            cls, key = owner(self.node, one.key)
            return f"{cls.__name__ if cls is not RunSpec else top} has no setting {short_repr(key)}"
        return f"no group or setting {short_repr(top)}"

    def _all(self, one: Unknown) -> str:
        top, _, rest = one.plain.partition(".")
        if rest and top in self.missing_groups:
            return suggest("", [name.partition(".")[2] for name in self.holders if name.startswith(f"{top}.")])
        if rest and top in (*self.files, *PLAIN):
            return suggest("", list(fields_of(owner(self.node, one.plain)[0])), listed="it has")
        return suggest("", [*self.files, *PLAIN])


def words_of_others(name: str, value: str) -> list[str]:
    """What to type for a name of another project and its value, as far as that is known without a run."""
    meanings = table().named.get(name, ())
    found = (convert(meaning, readable(value), RunContext()) or [] for meaning in meanings)
    return next((words for words in found if words and is_complete(words)), [])


def _groups_of(meaning: Translation) -> list[str]:
    return [name.rpartition(".")[0] for name in meaning.ours]


def suggest_choice(group: str, choice: str, choices: Sequence[str]) -> Suggestion:
    """For a choice that its config group does not have."""
    plain = {without_style(name): name for name in choices}
    last = choice.rpartition("/")[2]
    same = next((plain[without_style(each)] for each in (choice, last) if without_style(each) in plain), None)
    if other := table().absent.get(group, {}).get(choice.lower().replace("-", "_")):
        return Suggestion(Problem(group, f"no choice {choice!r}", other, "unknown-choice"))
    translated = table().choices.get(group, {}).get(choice.lower().replace("-", "_"))
    words = [f"{group}={same}"] if same else translated.split() if translated else _words_of_path(group, choice)
    if words:
        fix = f"did you mean {shell_text(words)}?" if same else f"use {shell_text(words)}"
    else:
        near = nearest(choice, choices)
        words = [f"{group}={near}"] if near else []
        fix = f"did you mean {words[0]}?" if words else suggest("", choices)
    problem = Problem(group, f"no choice {short_repr(choice)}", fix, "unknown-choice")
    meant = words[0].partition("=")[2] if words else ""
    certain = bool(same) or (abs(len(choice) - len(meant)) < 2 and _ratio(choice, meant) >= 0.75)
    return Suggestion(problem, tuple(words) if is_complete(words) else (), certain)


def _words_of_path(group: str, choice: str) -> list[str]:
    """Paths and ids that are typed where a choice is meant."""
    if ".." in choice or not _SAFE.fullmatch(choice):
        return []
    if group == "model" and "/" in choice:
        return ["model=hf", f"model.path={choice}"]
    if group == "data":
        return dataset_words(choice)
    return ["reward=python", f"reward.path={choice}"] if group == "reward" and choice.endswith(".py") else []


def _ratio(one: str, other: str) -> float:
    """How alike two names are, up to 1."""
    return SequenceMatcher(None, one, other).ratio()


def _most_alike(word: str, names: Mapping[str, str], cutoff: float) -> str | None:
    best = nearest(word, list(names), cutoff) if word else None
    return names[best] if best else None


def _count(value: Any, otherwise: int = 0) -> int:
    return value if isinstance(value, int) and value > 0 else otherwise


def readable(value: str) -> str:
    """A value as Hydra reads it: quoted where it is no plain name, number or list."""
    if not value or value[0] in "'\"[{" or re.fullmatch(r"[\w.+/:%@-]*", value, re.ASCII):
        return value
    return value if set(value) & set('"\\${}') else quoted(value)


def shell_text(words: Iterable[str]) -> str:
    """As they are typed in a shell."""
    return " ".join(
        with_short_value(word) if _SAFE.fullmatch(word) else shlex.quote(with_short_value(word)) for word in words
    )


def with_short_value(word: str) -> str:
    key, equals, value = word.partition("=")
    return word if len(value) <= LONGEST else f"{key}{equals}VALUE"
