"""What to type in place of an argument that names no setting: the translation of another project's name, the same name
in its right group, or the most similar known name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher, get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from launcher.config.arguments import OPTIONS, parse
from launcher.config.descriptions import fields_of
from launcher.config.names.conversions import RunContext, convert, is_complete, is_off
from launcher.config.names.table import SECTIONS, Translation, table
from launcher.config.nodes import PLAIN, accepts, has_setting, holders, owner
from launcher.config.request import SourcedOverride
from launcher.config.slips import HUB_ADDRESS, choice_of_value
from launcher.core.overrides import quoted
from launcher.core.problems import Problem, Problems, nearest, short_repr, suggest, without_style
from launcher.spec.run import RunSpec

LEAVE_OUT = "leave it out"
LONGEST = 100  # characters of a value; suggestions write VALUE for a longer one
ALIKE = 0.65
"""Least similarity (`_likeness`, 0 to 1) of a name that is suggested."""
BEGINS, HAS_WORDS = 0.9, 0.88
"""Similarity of a setting of the same group that begins with what was typed, and of one that has all its words."""
SURELY = 0.85
"""Least similarity of a setting of another choice that is pointed to."""
CHOICE_OF_SETTING = {
    "model.path": "model=hf", "data.repo": "data=hub", "data.train_files": "data=files", "data.val_files": "data=files",
}  # fmt: skip
"""Setting -> the choice of its group that it implies where none is typed."""
_SAFE = re.compile(r"[\w@%+=:,./-]+")  # needs no quotes in any shell; zsh takes [...] for a pattern


@dataclass(frozen=True)
class Suggestion:
    problem: Problem
    overrides: tuple[str, ...] = ()
    """Arguments that can replace the wrong one; empty where only the user can say what was meant."""
    certain: bool = False
    """Whether the choice in `overrides` is beyond doubt what was meant."""


@dataclass
class Suggester:
    """Suggestions for one run: `node` holds its settings as far as they are known, without the unknown arguments."""

    node: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Path]]
    """The choices of each config group, with their files."""
    missing_groups: Sequence[str] = ()
    """Groups whose choice is not known."""
    typed: Mapping[str, str] = field(default_factory=dict)
    """Name -> value of every setting that is typed, in our names or those of other projects."""

    @cached_property
    def holders(self) -> dict[str, list[str]]:
        return holders(self.files)

    def suggestion(self, one: SourcedOverride) -> Suggestion:
        if one.dashes and (option := get_close_matches(f"--{one.key}", OPTIONS, n=1, cutoff=0.8)):
            fix = f"did you mean {option[0]}?" if option[0] != f"--{one.key}" else "not in this place; leave it out"
            return Suggestion(Problem(one.shown, "no such option", fix, "unknown-setting"))
        suggestion = self._suggest_translation(one) or self._suggest_similar(one)
        return suggestion or self._suggest(one, self._list_known(one))

    def named(self, problem: Problem, values: Mapping[str, str]) -> list[Problem]:
        """The problem, replaced by suggestions where it is about a typed name that no setting has, or with a new fix
        where the value is another project's. `values` maps each typed setting to its value."""
        typed = [
            SourcedOverride(f"{key}={value}", "")
            for key, value in values.items()
            if f"{key}.".startswith(f"{problem.where}.")
        ]
        if problem.code == "unknown-setting":
            return [self.suggestion(one).problem for one in typed] or [problem]
        fix = next(filter(None, map(self._translate_value, typed)), "")
        return [replace(problem, fix=fix) if fix else problem]

    def _translate_value(self, one: SourcedOverride) -> str:
        """Fix for a setting of ours with another project's value, such as `model.dtype=bf16`; else empty."""
        meanings = [each for each in table().meanings if each.ours == (one.plain,) and one.value in (each.values or ())]
        words = convert(meanings[0], one.value, self.run_context()) if meanings else []
        is_other = words and words != [one.text] and words[0].startswith(one.plain)
        return f"use {shell_text(words)}" if words and is_other else ""

    # ---- names of other projects

    def _suggest_translation(self, one: SourcedOverride) -> Suggestion | None:
        name, meanings = table().find(one.plain if one.plain in table().named else one.plain.lower())
        is_ours = one.plain in self.holders and not self._has(one.plain)  # a setting of another choice
        place, _, leaf = one.plain.lower().rpartition(".")
        if not meanings and place in (*self.files, "optim", "trainer") and not self._is_nearly_ours(place, leaf):
            name, meanings = leaf, table().named.get(leaf, ())
        if name != one.plain and (name in self.holders or (is_ours and not any(map(self.fits, meanings)))):
            return None
        return self._suggest_meaning(one, name, meanings) if meanings else None

    def _is_nearly_ours(self, place: str, leaf: str) -> bool:
        """Whether a setting of any group has this last part, or one of the typed group a very similar one."""
        own = [name.rpartition(".") for name in self.holders]
        in_place = [own_leaf for own_place, _, own_leaf in own if own_place == place]
        return any(own_leaf == leaf for _, _, own_leaf in own) or bool(get_close_matches(leaf, in_place, 1, SURELY))

    def _suggest_meaning(self, one: SourcedOverride, name: str, meanings: Sequence[Translation]) -> Suggestion | None:
        """Suggest the first meaning whose setting this run has; None where that is what was typed."""
        meaning = next(filter(self.fits, meanings), meanings[0])
        words = convert(meaning, readable(one.value), self.run_context())
        if (meaning.ours[:1] == (one.plain,) and not meaning.instead) or words == [one.text]:
            return None
        got = self._describe_owner(one, name)
        if not words:
            return self._suggest(one, self._advise_without_words(one, meaning, words), got)
        if fix := self._fix_unknown_choice(words):
            return self._suggest(one, fix, got)
        lacking = self.lacking(words)
        if lacking and lacking.partition(".")[0] not in self.missing_groups:
            return self._suggest(one, self._point_to_choices(lacking, one.value), got)
        choices_note = f"of {lacking.partition('.')[0]}={shown(self.holders.get(lacking, ()))}" * bool(lacking)
        note = "; ".join(filter(None, (meaning.note, choices_note)))
        is_typed = not lacking and is_complete(words) and "{}" in (meaning.use or "{}")  # other uses are only examples
        fix = f"use {shell_text(words)} ({note})" if note else f"use {shell_text(words)}"
        return self._suggest(one, fix, got, words if is_typed else ())

    def _describe_owner(self, one: SourcedOverride, name: str) -> str:
        """`is TRL's name`; empty for a name of ours or of no project in particular."""
        owner = "" if name in self.holders else table().owner(name)
        full_name = "" if name in (one.plain, one.plain.lower()) else f"{name} "
        return f"{full_name}is {owner}'s name" if owner else ""

    def _advise_without_words(self, one: SourcedOverride, meaning: Translation, words: list[str] | None) -> str:
        """What to do where the value has no counterpart here, or is off (`words` is then empty)."""
        if words is not None and meaning.note and not meaning.ours and not is_off(one.value):
            return f"{LEAVE_OUT}: {meaning.note}"
        if words is not None:  # off, which it is here anyway; a reason holds then too, an advice what to use does not
            return meaning.instead if not meaning.ours and meaning.instead.endswith(LEAVE_OUT) else LEAVE_OUT
        if meaning.instead:
            return meaning.instead
        if lacking := self.lacking(meaning.ours[:1]):
            return self._point_to_choices(lacking, one.value)
        return f"use {meaning.ours[0]}=VALUE"

    def _fix_unknown_choice(self, words: Sequence[str]) -> str:
        """What to type where one of the words makes a choice that its group does not have; else empty."""
        for group, _, choice in (word.partition("=") for word in words):
            files = self.files.get(group)
            if files and choice not in files and not choice_of_value(group, choice, files):
                near = nearest(choice, list(files))
                otherwise = "data=files data.train_files=FILE" if group == "data" else f"{group}=CHOICE"
                return f"did you mean {group}={near}?" if near else f"use {otherwise}"
        return ""

    def lacking(self, words: Sequence[str]) -> str:
        """The first setting of these words that the run lacks and that no choice among the words brings; else empty."""
        names = [word.partition("=")[0] for word in words]
        return next((name for name in names if name.partition(".")[0] not in names and not self._surely_has(name)), "")

    def _surely_has(self, name: str) -> bool:
        """Whether the run has a setting or group, whichever choice is made in a group that has none yet."""
        top = name.partition(".")[0]
        if top in self.missing_groups:
            return set(self.holders.get(name, ())) == set(self.files[top])
        return "." not in name or has_setting(self.node, name)

    def fits(self, meaning: Translation) -> bool:
        """Whether the run has the meaning's setting, or gets it by the choice that is typed with it."""
        return not self.lacking(meaning.use.split() or meaning.ours[:1])

    def run_context(self) -> RunContext:
        """What conversions need to know: all that is typed, and whether the run has GPUs."""
        given = {self._full_name(key): value for key, value in self.typed.items()}
        return RunContext(given, has_gpus=bool((self.node.get("hardware") or {}).get("n_gpus_per_node")))

    def _full_name(self, key: str) -> str:
        """The table's name for one typed in part, or below another section: `max_steps` for `trainer.max_steps`."""
        plain = key.lower()
        name, meanings = table().find(plain)
        return name if meanings and plain not in self.holders else plain

    # ---- names of ours

    def _suggest_similar(self, one: SourcedOverride) -> Suggestion | None:
        """Suggest the most similar group, name of another project, or setting of this run or of another choice."""
        place, _, leaf = one.plain.lower().rpartition(".")
        likeness = {name: self._likeness(one.plain.lower(), name) for name in self.holders}
        alike = [name for name in likeness if likeness[name] >= ALIKE and self._may_be_meant(one, name)]
        alike.sort(key=lambda name: (-likeness[name], not self._has(name), name.count(".")))
        is_same_leaf = leaf in (name.rpartition(".")[2] for name in alike[:1])
        if not (is_same_leaf or place) and (of_group := self._suggest_group(one)):
            return of_group
        closest = max((likeness[name] for name in alike if self._has(name)), default=0.0)
        return self._suggest_other_name(one, leaf, closest) or self._suggest_setting(one, likeness, alike)

    def _suggest_other_name(self, one: SourcedOverride, leaf: str, closest: float) -> Suggestion | None:
        """Suggest another project's name that is more similar than the `closest` setting of the run."""
        others = get_close_matches(leaf, list(table().named), n=1, cutoff=0.85)
        if not others or others[0] == leaf or others[0] in self.holders or 0.95 * _ratio(leaf, others[0]) <= closest:
            return None
        found = self._suggest_meaning(one, others[0], table().named[others[0]])
        if not found or (found.problem.fix == LEAVE_OUT and closest):
            return None
        return self._suggest(one, f"did you mean {others[0]}? {found.problem.fix}", "", found.overrides)

    def _suggest_setting(
        self, one: SourcedOverride, likeness: Mapping[str, float], alike: Sequence[str]
    ) -> Suggestion | None:
        """Suggest the most similar of the `alike` settings that the run has, or that of another choice if it is very
        similar."""
        own = [name for name in alike if self._has(name)]
        if alike[:1] != own[:1] and likeness[alike[0]] > SURELY:
            return self._suggest(one, self._point_to_choices(alike[0], one.value))
        if not own:
            return None
        equal = [name for name in own if likeness[name] == likeness[own[0]] in (BEGINS, HAS_WORDS)]
        equal = [name for name in equal if self._accepts(one, name)] or equal
        if equal[1:]:
            return self._suggest(one, f"did you mean {', '.join(equal[:-1])} or {equal[-1]}?")
        if alike[0].rpartition(".")[2] == one.plain.lower().rpartition(".")[2]:
            return self._suggest_same_leaf(one, own[0])
        words = [f"{(equal or own)[0]}={readable(one.value)}"]
        return self._suggest(one, f"did you mean {shell_text(words)}?", "", words)

    def _suggest_same_leaf(self, one: SourcedOverride, setting: str) -> Suggestion:
        """Suggest a setting where only the group is missing or wrong."""
        place, groups = one.plain.lower().rpartition(".")[0], (*self.files, *PLAIN)
        words = [f"{setting}={readable(one.value)}"]
        is_group = place in ("", *groups, *SECTIONS) or has_setting(self.node, place)
        if not is_group and not nearest(place, groups, cutoff=0.75):  # an unknown section, such as validation
            return self._suggest(one, f"did you mean {setting}?")
        got = "arguments have no dashes" if one.dashes and one.plain == setting else ""
        return self._suggest(one, f"use {shell_text(words)}", got, words)

    def _likeness(self, typed: str, name: str) -> float:
        """Similarity of a typed name and a setting, 0 to 1. Settings of other choices are compared by their last parts
        only, and rank after those of the run, where their group is not typed, or a part of it that has its own."""
        (place, _, leaf), top = typed.rpartition("."), name.partition(".")[0]
        is_in_group = place.partition(".")[0] == top and typed.count(".") <= name.count(".")
        if self._has(name) or is_in_group:
            return _likeness(typed, name)
        factor = 0.9 if place else 0.995  # a setting of the group that was typed ranks before
        return factor * _likeness(typed, name) if len(leaf) > 2 and name.endswith(f".{leaf}") else 0.0

    def _may_be_meant(self, one: SourcedOverride, name: str) -> bool:
        """False for a setting that neither is nearly what was typed nor takes its value, and for one of another group
        than was typed, unless its last part is the same and that of no other."""
        (place, _, leaf), own_leaf = one.plain.lower().rpartition("."), name.rpartition(".")[2]
        group, is_mistake = place.partition(".")[0], _ratio(leaf, own_leaf) >= SURELY
        if group in (*self.files, *PLAIN) and group != name.partition(".")[0]:
            namesakes = [each for each in self.holders if each.count(".") == 1 and each.endswith(f".{leaf}")]
            return is_mistake and len([each for each in namesakes if self._has(each)] or namesakes) < 2
        return is_mistake or own_leaf.startswith(leaf) or self._accepts(one, name)

    def _accepts(self, one: SourcedOverride, name: str) -> bool:
        """Whether a setting takes the typed value, or is one that the run does not have."""
        value: Any = one.value
        with suppress(Problems):
            value = parse(f"value={one.value}").value()
        return accepts(self.node, name, value)

    def _point_to_choices(self, name: str, value: str) -> str:
        """What to do about a setting that only other choices of its group have."""
        if choice := CHOICE_OF_SETTING.get(name):
            return f"use {shell_text([choice, f'{name}={readable(value)}'])}"
        fix = f"{name} is a setting of {name.partition('.')[0]}={shown(self.holders[name])}"
        return f"leave it out, as {fix}" if is_off(value) else fix

    def _suggest_group(self, one: SourcedOverride) -> Suggestion | None:
        """Suggest the group of this name, or the most similar one."""
        group = one.plain if one.plain in self.files else nearest(one.plain, list(self.files), cutoff=0.75)
        if not group:
            return None
        words = [f"{group}={readable(one.value)}"]
        got = "arguments have no dashes" if one.plain == group else ""
        if fix := self._fix_unknown_choice(words):
            return self._suggest(one, fix, got)
        return self._suggest(one, f"did you mean {shell_text(words)}?", got, words)

    def _has(self, name: str) -> bool:
        """Whether the run has a setting, or may have it."""
        return name.partition(".")[0] in self.missing_groups or has_setting(self.node, name)

    def _suggest(self, one: SourcedOverride, fix: str, got: str = "", words: Iterable[str] = ()) -> Suggestion:
        top, _, rest = one.key.partition(".")
        if not got and rest and top in self.missing_groups:
            got = f"no choice of {top} has a setting {short_repr(rest)}"
        elif not got and rest and top in (*self.files, *PLAIN):
            cls, key = owner(self.node, one.key)
            got = f"{cls.__name__ if cls is not RunSpec else top} has no setting {short_repr(key)}"
        problem = Problem(one.shown, got or f"no group or setting {short_repr(top)}", fix, "unknown-setting")
        return Suggestion(problem, tuple(words))

    def _list_known(self, one: SourcedOverride) -> str:
        """The fix that lists what may stand in place of a name."""
        top, _, rest = one.plain.partition(".")
        if rest and top in self.missing_groups:
            return suggest("", [name.partition(".")[2] for name in self.holders if name.startswith(f"{top}.")])
        if rest and top in (*self.files, *PLAIN):
            return suggest("", list(fields_of(owner(self.node, one.plain)[0])), listed="it has")
        return suggest("", [*self.files, *PLAIN])


def words_of_others(name: str, value: str) -> list[str]:
    """What to type for a name of another project and its value; empty where that depends on a run."""
    meanings = table().named.get(name, ())
    candidates = (convert(meaning, readable(value), RunContext()) or [] for meaning in meanings)
    return next((words for words in candidates if words and is_complete(words)), [])


def suggest_choice(group: str, choice: str, choices: Sequence[str]) -> Suggestion:
    """The suggestion for a choice that its config group does not have."""
    name = choice.lower().replace("-", "_")
    got = f"no choice {short_repr(choice)}"
    if advice := table().absent.get(group, {}).get(name):
        return Suggestion(Problem(group, got, advice, "unknown-choice"))
    last_part = without_style(choice.rpartition("/")[2])
    same_name = next((each for each in choices if without_style(each) == last_part), None)
    near = same_name or nearest(choice, choices)
    if address := HUB_ADDRESS.match(choice):
        words, fix = [f"{group}={address[1]}"], f"use {group}={address[1]}"
    elif not same_name and (replacement := table().choices.get(group, {}).get(name)):
        words, fix = replacement.split(), f"use {replacement}"
    elif near:
        words, fix = [f"{group}={near}"], f"did you mean {group}={near}?"
    else:
        words, fix = [], suggest("", choices)
    certain = bool(same_name) or bool(near and abs(len(choice) - len(near)) < 2 and _ratio(choice, near) >= 0.75)
    typed = () if address or not is_complete(words) else tuple(words)
    return Suggestion(Problem(group, got, fix, "unknown-choice"), typed, certain)


def _likeness(typed: str, name: str) -> float:
    """Similarity of a typed name and one of ours, 0 to 1, by their last parts or by the whole names. A name of the same
    group ranks before others, and so does one that begins with what was typed."""
    (place, _, leaf), (own_place, _, own_leaf) = typed.rpartition("."), name.rpartition(".")
    if not place and "." not in name:
        return _ratio(typed, name)
    least = 0.0
    if place == own_place and {*leaf.split("_")} <= {*own_leaf.split("_")}:
        least = HAS_WORDS
    if place == own_place and len(leaf) > 2 and own_leaf.startswith(leaf):
        least = BEGINS
    leaf_likeness = max(least, _ratio(leaf, own_leaf))
    if not place or own_place == place or own_place.startswith(f"{place}."):
        return leaf_likeness
    return 0.95 * max(leaf_likeness, _ratio(typed, name))


def _ratio(one: str, other: str) -> float:
    """Similarity of two names, 0 to 1 (difflib); nearly 1 where the same letters stand in another order."""
    one, other = without_style(one), without_style(other)
    is_reordered = one != other and sorted(one) == sorted(other)
    return 0.99 if is_reordered else SequenceMatcher(None, one, other).ratio()


def shown(choices: Sequence[str]) -> str:
    return ", ".join(choices[:4]) + (", ..." if len(choices) > 4 else "")


def readable(value: str) -> str:
    """A value as Hydra can read it: quoted unless it is a plain name, a number or a list."""
    if not value or value[0] in "'\"[{" or re.fullmatch(r"[\w.+/:%@-]*", value, re.ASCII):
        return value
    return value if set(value) & set('"\\${}') else quoted(value)


def shell_text(words: Iterable[str]) -> str:
    """The words as they are typed in a shell; values longer than LONGEST are written VALUE."""
    pairs = [word.partition("=") for word in words]
    short = [f"{key}{equals}{value if len(value) <= LONGEST else 'VALUE'}" for key, equals, value in pairs]
    return " ".join(word if _SAFE.fullmatch(word) else shlex.quote(word) for word in short)
