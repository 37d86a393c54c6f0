"""Which keys of rows and turns nothing reads, and what is known of them (conf/row_keys.yaml).

A form of rows says which keys it reads by reading them: `ReadKeys` notes it. What remains is named by a plan and by
`rlrun data check`, or refuses the row where it is known that without it prompt and answer say something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

import yaml

from launcher.core.bounded_parse import LOADER
from launcher.core.check_result import CheckResult
from launcher.core.files import conf_dir
from launcher.core.problems import short_repr
from launcher.data.rows import UnfitRow, json_value
from launcher.spec.data import Row

OF_TURNS = "turns[]."
"""Stands before the keys of turns, where those of their row are listed."""
_LISTED = 8  # keys that have no line of their own
_HUMPS, _SEPARATORS = re.compile(r"(?<=[a-z])(?=[A-Z])"), re.compile(r"[\s-]+")
_YES, _NO = ("true", "1", "1.0", "yes", "on"), ("false", "0", "0.0", "no", "off")
_EMPTY = ("", "[]", "{}", "null", "none", "nan", "n/a")
_HOLD_LISTS = ("tools", "chat_template_kwargs", "history")
_HOLD_NO_NUMBER = (
    *(*_HOLD_LISTS, "system", "system_prompt", "input", "context"),
    *("reward_model", "extra_info", "ability", "data_source"),
)
"""Keys that are read where they hold texts, lists or objects: a number or a flag of that name is data."""


class KeyUse(NamedTuple):
    """What is known of a key, and what to use in its place."""

    kind: str = ""
    use: str = ""


class ReadKeys(dict[str, Any]):
    """The values of a row, which notes the keys that were read."""

    def __init__(self, values: Any) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        value = super().get(key, default)
        listed = key in _HOLD_LISTS or (key in _HOLD_NO_NUMBER and not isinstance(value, (str, dict)))
        if listed and (is_number(value) or not is_given(value)):
            return default
        if value is not None:
            self.read.add(key)
        return value

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def unread(self) -> list[str]:
        """Keys with something in them that nothing has read."""
        rule = super().get("reward_model") if "reward_model" in self.read else None
        of_rule = rule.keys() - {"ground_truth", "style"} if isinstance(rule, dict) else ()
        given = [key for key, value in self.items() if key not in self.read and is_given(value)]
        return given + [f"reward_model.{key}" for key in sorted(of_rule)]

    def unread_of(self, row: Row, *, given: bool, learned: bool) -> tuple[str, ...]:
        """Those that are left of the row and of its turns. Raises `UnfitRow` for one without which the row says
        something else: where it is `learned` what says that not all is to be, where its answer is `given` what says
        that it is a bad one."""
        left = [key for key in self.unread() if not self._is_settled(key, given, learned)]
        extras = [row.response_extra, row.rejected_extra]
        extras += [] if isinstance(row.prompt, str) else [turn.extra for turn in row.prompt]
        of_turns = (key for extra in extras for key in extra if meaning_of(key, "turn").kind != "read")
        return (*left, *dict.fromkeys(OF_TURNS + key for key in of_turns))

    def _is_settled(self, key: str, given: bool, learned: bool) -> bool:
        """Whether the key says what holds anyway. Raises `UnfitRow`."""
        value, (kind, use) = super().get(key), meaning_of(key)
        if kind not in ("refused", "verdict", "learned", "unlearned"):
            return False
        if kind == "refused":
            if is_number(value):  # how many, or whether
                return False
            raise UnfitRow(f"{key} cannot be read yet; {use}")
        off = is_off(value, kind)
        if off and given and kind == "verdict":
            raise UnfitRow(
                f"{key} is {short_repr(value)}: as in data for KTO the answer is one to avoid, and would be learned as"
                f" a good one; use rows where {key} is true, or rename it where it means something else"
            )
        if off and learned and kind in ("learned", "unlearned"):
            raise UnfitRow(f"{key} is {short_repr(value)}: not all is to be learned; leave out what is not")
        return off is False


def is_given(value: Any) -> bool:
    """Whether something is in it: a list or an object of nothing is nothing."""
    if isinstance(value, (list, dict)):
        return any(map(is_given, value.values() if isinstance(value, dict) else value))
    return value is not None and value == value and not (isinstance(value, str) and value.strip().lower() in _EMPTY)


def is_number(value: Any) -> bool:
    """Whether it is a number or a flag; CSV has them as texts."""
    text = value.strip().lower() if isinstance(value, str) else ""
    return isinstance(value, (int, float)) or text.isdecimal() or text in (*_YES, *_NO)


@cache
def _meanings(part: str) -> tuple[dict[str, KeyUse], re.Pattern[str]]:
    """Of rows or of turns, by key; and the names of numbers."""
    table = yaml.load((conf_dir() / "row_keys.yaml").read_bytes(), Loader=LOADER)
    entries = [(kind, {"keys": given} if isinstance(given, str) else given) for kind, given in table[part].items()]
    return {
        key: KeyUse(kind, " ".join(entry.get("use", "").split()))
        for kind, given in entries
        for entry in ([given] if isinstance(given, dict) else given)
        for key in entry["keys"].split()
    }, re.compile(table["numbers"])


@lru_cache(4096)
def meaning_of(key: str, part: Literal["row", "turn"] = "row") -> KeyUse:
    known, numbers = _meanings(part)
    names = [_SEPARATORS.sub("_", name).lower() for name in (key.strip()[:60], _HUMPS.sub("_", key.strip()[:60]))]
    found = next((known[name] for name in names if name in known), None)
    return found or KeyUse("plain" if numbers.fullmatch(names[1]) else "")


def is_off(value: Any, kind: str) -> bool | None:
    """Whether it says that an answer is a bad one, or not to be learned; None where it says neither yes nor no."""
    no, yes = (_YES, _NO) if kind == "unlearned" else (_NO, _YES)
    if isinstance(value, list) and value:
        each = [is_off(one, kind) for one in value]
        return True if True in each else None if None in each else False
    text = str(value).strip().lower()
    return True if text in no else False if text in yes or not is_given(value) else None


def objects_of(path: str, value: Any) -> list[dict[str, Any]]:
    """Those of a list that have something in them; the list, and each of them, may be written as JSON."""
    if is_number(value) or not is_given(value):
        return []
    every = json_value(path, value, list, "a list of objects") or ()
    found = (json_value(f"{path}[{place}]", each, dict, "an object") for place, each in enumerate(every))
    return [each for each in found if is_given(each)]


def is_of_template(path: str, key: str, value: Any, answers: bool) -> bool:
    """Whether something of a turn is given to the chat template, or to be named: of a turn that does not answer, that
    it is learned. Raises `UnfitRow` for what would not be read right."""
    kind, use = meaning_of(key, "turn")
    if kind == "refused" and is_given(value) and not is_number(value):
        raise UnfitRow(f"{path}.{key} cannot be read yet; {use}")
    if kind == "learned" and not answers:
        return is_given(value) and is_off(value, kind) is False
    return value is not None and kind not in ("refused", "learned", "unlearned")


def refuse_unlearned(path: str, turn: Mapping[str, Any]) -> None:
    """Raise `UnfitRow` for an assistant's turn that is not to be learned, or only in part."""
    for key, value in turn.items():
        kind = meaning_of(key, "turn").kind
        if kind in ("learned", "unlearned") and is_off(value, kind) is not False:
            got = f"{path}.{key} is {short_repr(value)}"
            raise UnfitRow(f"{got}; every assistant turn is learned, so leave the turn out")


class UnreadKeys:
    """The keys that nothing reads, counted over rows."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows, self.found = 0, dict[str, tuple[int, str]]()
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        self.rows += 1
        for key in row.unread:
            count, first = self.found.get(key, (0, row.where))
            self.found[key] = count + 1, first

    def results(self) -> Iterator[CheckResult]:
        """A line for each key of which it is known what to use, one for the others, one for those of a row as data."""
        others, plain = list[str](), list[str]()
        for key, (count, first) in self.found.items():
            of_turn = key.startswith(OF_TURNS)
            kind, use = meaning_of(key.removeprefix(OF_TURNS), "turn" if of_turn else "row")
            seen = f"{count:,} of {self.rows:,} rows, {first} is the first"
            if kind == "plain":
                plain.append(key)
            elif use:
                yield CheckResult("WARN", "data", f"nothing reads {key} ({seen})", use)
            else:
                others.append(f"{key} ({seen})")
        if others:
            more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
            fix = "put what matters into the prompt or the answer, and what a reward needs into extra_info"
            yield CheckResult("WARN", "data", f"nothing reads {', '.join(others[:_LISTED])}{more}", fix)
        if plain:
            yield CheckResult("OK", "data", f"not read, as of a table of data: {', '.join(plain)}")
