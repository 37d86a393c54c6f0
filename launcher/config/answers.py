"""What to type in place of an argument that names no setting: a name of another project, or one that is misspelt."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from launcher.config.descriptions import fields_of
from launcher.config.known import has_setting, holders
from launcher.config.names.conversions import Situation, is_complete, to_type
from launcher.config.names.table import Meaning, table
from launcher.config.nodes import TARGET, owner
from launcher.config.options import Unknown
from launcher.config.resolve import PLAIN
from launcher.core.classes import locate
from launcher.core.problems import Problem, nearest, suggest, without_style
from launcher.spec.algorithm import Algorithm
from launcher.spec.run import RunSpec

OPTIONS = (
    "--config-dir", "--resume", "--root", "--dry-run", "--detach", "--multirun", "--parallel", "--recipe", "--source",
    "--json", "--yaml", "--help",
)  # fmt: skip
"""Options of train and plan; an unknown one that is like none of them is a setting with dashes."""
LONGEST = 100  # characters of a value that is shown in a suggestion
_SAFE = re.compile(r"[\w@%+=:,./\[\]-]+")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_ROWS = re.compile(r".*\.(jsonl|ndjson|json|parquet|csv)(\.gz)?")


@dataclass(frozen=True)
class Suggestion:
    problem: Problem
    words: tuple[str, ...] = ()
    """Arguments that can stand for the wrong one; empty where it takes a person to say."""
    sure: bool = False
    """Whether these are what was meant, beyond doubt."""


@dataclass
class Guide:
    """Answers for one run, as far as it is known: `node` is its settings without the unknown ones."""

    node: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Path]]
    """The choices of each config group, with their files."""
    unknown: Sequence[Unknown] = ()
    unchosen: Sequence[str] = ()
    """Groups whose choice is not known."""

    @cached_property
    def holders(self) -> dict[str, list[str]]:
        return holders(self.files)

    def answers(self) -> list[Suggestion]:
        return [self.answer(one) for one in self.unknown]

    def answer(self, one: Unknown) -> Suggestion:
        if one.dashes and (option := get_close_matches(f"--{one.key}", OPTIONS, n=1, cutoff=0.8)):
            return Suggestion(Problem(one.shown, "no such option", f"did you mean {option[0]}?", "unknown-setting"))
        ways = (
            self._by_name, self._own, self._by_part_of_name, self._own_elsewhere, self._group_of_name, self._like_own,
            self._like_name,
        )  # fmt: skip
        found = next((answer for way in ways if (answer := way(one))), None)
        return found or Suggestion(Problem(one.shown, self._unknown(one), self._all(one), "unknown-setting"))

    def named(self, problem: Problem, values: Mapping[str, str]) -> list[Problem]:
        """The problem, or where it is about the name of a setting that was typed, what to type instead.

        `values` are those of all settings that were typed.
        """
        below = [key for key in values if f"{key}.".startswith(f"{problem.where}.")]
        of_others = [key for key in below if key != problem.where and key in table().named]
        if problem.code != "unknown-setting" and not of_others:
            return [problem]
        return [self.answer(Unknown(key, values[key])).problem for key in of_others or below] or [problem]

    # ---- names of other projects

    def _by_name(self, one: Unknown) -> Suggestion | None:
        named = table().named
        name = next((each for each in (one.plain, one.plain.lower()) if each in named), None)
        return self._translated(one, name, named[name]) if name else None

    def _by_part_of_name(self, one: Unknown) -> Suggestion | None:
        name, meanings = table().find(one.plain.lower())
        if not meanings or (self._same_elsewhere(one) and not any(map(self._fits, meanings))):
            return None
        return self._translated(one, name, meanings)

    def _like_name(self, one: Unknown) -> Suggestion | None:
        named = table().named
        near = get_close_matches(one.plain.lower().rpartition(".")[2], list(named), n=1, cutoff=0.85)
        found = self._translated(one, near[0], named[near[0]]) if near else None
        if not found:
            return None
        problem = Problem(
            one.shown, self._unknown(one), f"did you mean {near[0]}? {found.problem.fix}", "unknown-setting"
        )
        return Suggestion(problem, found.words)

    def _translated(self, one: Unknown, name: str, meanings: Sequence[Meaning]) -> Suggestion | None:
        """The first meaning whose setting this run has; nothing where that is what was typed."""
        usable = [meaning for meaning in meanings if self._fits(meaning)]
        meaning = (usable or meanings)[0]
        if meaning.ours[:1] == (one.plain,):
            return None
        words = to_type(meaning, _readable(one.value), self._situation())
        whose = table().owner(name)
        typed_so = name in (one.plain, one.plain.lower())
        got = f"{'' if typed_so else f'{name} '}is {whose}'s name" if whose else self._unknown(one)
        if words is None:
            fix, typed = meaning.instead or f"use {meaning.ours[0]}=VALUE", list[str]()
        elif not words:
            fix, typed = meaning.instead or "leave it out", []
        else:
            words = [self._with_choice(word) for word in words]
            top = meaning.ours[0].partition(".")[0]
            chosen = usable or any(word.startswith(f"{top}=") for word in words)
            note = "; ".join(filter(None, (meaning.note, "" if chosen else self._of_choices(meaning.ours[0]))))
            fix, typed = f"use {_shown(words)}{f' ({note})' if note else ''}", words if is_complete(words) else []
        return Suggestion(Problem(one.shown, got, fix, "unknown-setting"), tuple(typed))

    def _with_choice(self, word: str) -> str:
        """Of a word that chooses, the choice that is meant."""
        group, _, choice = word.partition("=")
        if group not in self.files or choice in self.files[group]:
            return word
        near = nearest(choice, list(self.files[group]))
        return f"{group}={near or 'CHOICE'}"

    def _fits(self, meaning: Meaning) -> bool:
        """Whether the run has the setting, or gets it by the choice that is typed with it."""
        name = next(iter(meaning.ours), "")
        return "." not in name or f"{name.partition('.')[0]}=" in meaning.use or has_setting(self.node, name)

    def _of_choices(self, name: str) -> str:
        top, choices = name.partition(".")[0], self.holders.get(name, [])
        shown = ", ".join(choices[:4]) + (", ..." if len(choices) > 4 else "")
        return f"of {top}={shown}" if choices else ""

    def _situation(self) -> Situation:
        given = {one.plain.rpartition(".")[2].lower(): one.value for one in self.unknown}
        hardware = self.node.get("hardware") or {}
        each = hardware.get("nproc_per_node") or max(_count(hardware.get("n_gpus_per_node")), 1)
        algorithm = _algorithm(self.node)
        sampled = algorithm is not None and algorithm.data in ("prompts", "mixed")
        return Situation(
            given=given,
            processes=_count(each, 1) * _count(hardware.get("nnodes"), 1),
            answers=_count(self._value("sampler.n"), 1) if sampled else 1,
            pairs=algorithm is not None and algorithm.data == "pairs",
            batch=_count(self._value("data.train_batch_size")) or None,
            steps=_count(self._value("trainer.total_training_steps")) or None,
            prompt_length=_count(self._value("data.max_prompt_length"), 512),
        )

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

    def _own(self, one: Unknown) -> Suggestion | None:
        """A setting of this run whose group is missing or wrong."""
        if here := [name for name in self._same_leaf(one) if self._has(name)]:
            words = (f"{here[0]}={_readable(one.value)}",)
            got = "arguments have no dashes" if one.dashes and one.plain == here[0] else self._unknown(one)
            return Suggestion(Problem(one.shown, got, f"use {_shown(words)}", "unknown-setting"), words)
        return None

    def _own_elsewhere(self, one: Unknown) -> Suggestion | None:
        same = self._same_elsewhere(one) or (self._same_leaf(one) if len(one.plain) > 2 else [])
        if not same:
            return None
        fix = f"{same[0]} is a setting {self._of_choices(same[0])}"
        return Suggestion(Problem(one.shown, self._unknown(one), fix, "unknown-setting"))

    def _same_elsewhere(self, one: Unknown) -> list[str]:
        """The setting itself, where a choice has it that is not this run's."""
        return [one.plain] if self.holders.get(one.plain) else []

    def _same_leaf(self, one: Unknown) -> list[str]:
        """Settings with the same last name, those of the same group first."""
        top, leaf = one.plain.partition(".")[0], one.plain.rpartition(".")[2].lower()
        same = [name for name in self.holders if name == leaf or name.endswith(f".{leaf}")]
        return sorted(same, key=lambda name: (not name.startswith(f"{top}."), name.count(".")))

    def _group_of_name(self, one: Unknown) -> Suggestion | None:
        """A config group that is misspelt, or whose choice follows two dashes."""
        groups = list(self.files)
        top = one.plain if one.plain in groups else nearest(one.plain, groups, cutoff=0.75)
        if not top or "." in one.plain:
            return None
        value = one.value if one.value in self.files[top] else nearest(one.value, list(self.files[top])) or one.value
        words = (f"{top}={value}",)
        got = "arguments have no dashes" if one.dashes and one.plain == top else self._unknown(one)
        return Suggestion(Problem(one.shown, got, f"did you mean {_shown(words)}?", "unknown-setting"), words)

    def _like_own(self, one: Unknown) -> Suggestion | None:
        """The most alike setting of this run, those of the same group first."""
        top, _, rest = one.plain.lower().partition(".")
        here = [name for name in self.holders if self._has(name)]
        local = {name.partition(".")[2]: name for name in here if name.startswith(f"{top}.")}
        whole = {name: name for name in here} | {name.rpartition(".")[2]: name for name in reversed(here)}
        cls, key = owner(self.node, one.plain)
        inside = {} if cls is RunSpec else {name: f"{one.plain.removesuffix(key)}{name}" for name in fields_of(cls)}
        near = _most_alike(key, inside, 0.7) or _most_alike(rest, local, 0.7)
        near = near or (None if local else _most_alike(one.plain.lower(), whole, 0.7))
        near = near or _most_alike(rest.rpartition(".")[2], whole, 0.75) or _most_alike(rest, local, 0.65)
        if not near:
            return None
        words = (f"{near}={_readable(one.value)}",)
        return Suggestion(
            Problem(one.shown, self._unknown(one), f"did you mean {_shown(words)}?", "unknown-setting"), words
        )

    def _has(self, name: str) -> bool:
        """Whether the run has a setting, or may have it."""
        return name.partition(".")[0] in self.unchosen or has_setting(self.node, name)

    def _unknown(self, one: Unknown) -> str:
        top, _, rest = one.key.partition(".")
        if rest and top in self.unchosen:
            return f"no choice of {top} has a setting {rest!r}"
        if rest and top in (*self.files, *PLAIN):
            cls, key = owner(self.node, one.key)
            return f"{cls.__name__ if cls is not RunSpec else top} has no setting {key!r}"
        return f"no group or setting {top!r}"

    def _all(self, one: Unknown) -> str:
        top, _, rest = one.plain.partition(".")
        if rest and top in self.unchosen:
            return suggest("", [name.partition(".")[2] for name in self.holders if name.startswith(f"{top}.")])
        if rest and top in (*self.files, *PLAIN):
            return suggest("", list(fields_of(owner(self.node, one.plain)[0])), listed="it has")
        return suggest("", [*self.files, *PLAIN])


def choice_answer(group: str, choice: str, choices: Sequence[str]) -> Suggestion:
    """For a choice that its config group does not have."""
    plain = {without_style(name): name for name in choices}
    last = choice.rpartition("/")[2]
    same = next((plain[without_style(each)] for each in (choice, last) if without_style(each) in plain), None)
    translated = table().choices.get(group, {}).get(choice.lower().replace("-", "_"))
    words = [f"{group}={same}"] if same else translated.split() if translated else _meant(group, choice)
    if words:
        fix = f"did you mean {same}?" if same else f"use {_shown(words)}"
    else:
        fix, near = suggest(choice, choices), nearest(choice, choices)
        words = [f"{group}={near}"] if near else []
    problem = Problem(group, f"no choice {choice!r}", fix, "unknown-choice")
    meant = words[0].partition("=")[2] if words else ""
    sure = bool(same) or (abs(len(choice) - len(meant)) < 2 and SequenceMatcher(None, choice, meant).ratio() >= 0.75)
    return Suggestion(problem, tuple(words) if is_complete(words) else (), sure)


def _meant(group: str, choice: str) -> list[str]:
    """Paths and ids that are typed where a choice is meant."""
    if ".." in choice or not _SAFE.fullmatch(choice):
        return []
    if group == "model" and "/" in choice:
        return ["model=hf", f"model.path={choice}"]
    if group == "data" and _ROWS.fullmatch(choice):
        return ["data=files", f"data.train_files={choice}"]
    if group == "data" and _HUB_ID.fullmatch(choice):
        return ["data=hub", f"data.repo={choice}"]
    return ["reward=python", f"reward.path={choice}"] if group == "reward" and choice.endswith(".py") else []


def _most_alike(word: str, names: Mapping[str, str], cutoff: float) -> str | None:
    near = get_close_matches(word, list(names), n=3, cutoff=cutoff) if word else []
    best = max(near, key=lambda name: SequenceMatcher(None, word, name).ratio(), default=None)
    return names[best] if best is not None else None


def _algorithm(node: Mapping[str, Any]) -> type[Algorithm] | None:
    chosen = node.get("algorithm")
    target = chosen.get(TARGET) if isinstance(chosen, Mapping) else None
    noun: type = Algorithm
    try:
        return locate(str(target), noun) if target else None
    except ValueError:
        return None


def _count(value: Any, otherwise: int = 0) -> int:
    return value if isinstance(value, int) and value > 0 else otherwise


def _readable(value: str) -> str:
    """A value as Hydra reads it: quoted where it is no plain name, number or list."""
    if not value or value[0] in "'\"[{" or re.fullmatch(r"[\w.+/:%@-]*", value, re.ASCII):
        return value
    return value if set(value) & set('"\\${}') else f'"{value}"'


def _shown(words: Iterable[str]) -> str:
    """As they are typed in a shell."""
    return " ".join(_short(word) if _SAFE.fullmatch(word) else shlex.quote(_short(word)) for word in words)


def _short(word: str) -> str:
    key, equals, value = word.partition("=")
    return word if len(value) <= LONGEST else f"{key}{equals}VALUE"
