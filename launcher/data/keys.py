"""Keys of rows and turns that nothing reads, and what is known of such keys (conf/row_keys.yaml).

`ReadKeys` records which keys a row format reads. The others are listed by a plan and by `rlrun data check`; a row is
refused for a key that is known to change the meaning of its prompt or answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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
"""Prefix of the keys of turns in lists of a row's keys."""
_LISTED = 8  # keys without advice that one line names
_CAMEL_CASE, _SEPARATORS = re.compile(r"(?<=[a-z])(?=[A-Z])"), re.compile(r"[\s-]+")
_YES, _NO = ("true", "1", "1.0", "yes", "on"), ("false", "0", "0.0", "no", "off")
_EMPTY = ("", "[]", "{}", "null", "none", "nan", "n/a")
_HOLD_LISTS = ("tools", "chat_template_kwargs", "history")
_HOLD_NO_NUMBERS = (
    *(*_HOLD_LISTS, "system", "system_prompt", "input", "context"),
    *("reward_model", "extra_info", "ability", "data_source"),
)
"""Keys that are read only if they hold a text, a list or an object; a number or a flag in them is plain data."""


class KeyUse(NamedTuple):
    """The kind of a key in conf/row_keys.yaml, and the advice on what to use instead."""

    kind: str = ""
    use: str = ""


class ReadKeys(dict[str, Any]):
    """The values of a row; `read` collects the keys that were looked up."""

    def __init__(self, values: Any) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        value = super().get(key, default)
        listed = key in _HOLD_LISTS or (key in _HOLD_NO_NUMBERS and not isinstance(value, (str, dict)))
        if listed and (is_number(value) or not is_given(value)):
            return default
        if value is not None:
            self.read.add(key)
        return value

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def unread(self) -> list[str]:
        """Keys with a non-empty value that nothing has read."""
        reward_model = super().get("reward_model") if "reward_model" in self.read else None
        rule_keys = reward_model.keys() - {"ground_truth", "style"} if isinstance(reward_model, dict) else ()
        non_empty = [key for key, value in self.items() if key not in self.read and is_given(value)]
        return non_empty + [f"reward_model.{key}" for key in sorted(rule_keys)]

    def unread_of(self, row: Row, *, given: bool, learned: bool) -> tuple[str, ...]:
        """The unread keys of the row and of its turns. Raises `UnfitRow` for a key that changes what the row means: in
        a row that is `learned`, one that excludes a part from learning; in one whose answer is `given`, one that rates
        the answer as bad."""
        unread = [key for key in self.unread() if not self._is_redundant(key, given, learned)]
        turn_extras = [row.response_extra, row.rejected_extra]
        turn_extras += [] if isinstance(row.prompt, str) else [turn.extra for turn in row.prompt]
        turn_keys = (key for extra in turn_extras for key in extra if meaning_of(key, "turn").kind != "read")
        return (*unread, *dict.fromkeys(OF_TURNS + key for key in turn_keys))

    def _is_redundant(self, key: str, given: bool, learned: bool) -> bool:
        """Whether the key only confirms the default (a good answer, all learned). Raises `UnfitRow` if it denies it."""
        value, (kind, use) = super().get(key), meaning_of(key)
        if kind not in ("refused", "verdict", "learned", "unlearned"):
            return False
        if kind == "refused":
            if is_number(value):  # a count or a flag, not the content itself
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
    """Whether a value is not empty; lists and objects of only empty values are empty."""
    if isinstance(value, (list, dict)):
        return any(map(is_given, value.values() if isinstance(value, dict) else value))
    return value is not None and value == value and not (isinstance(value, str) and value.strip().lower() in _EMPTY)


def is_number(value: Any) -> bool:
    """Whether a value is a number or a flag, also as text, as in CSV."""
    text = value.strip().lower() if isinstance(value, str) else ""
    return isinstance(value, (int, float)) or text.isdecimal() or text in (*_YES, *_NO)


@cache
def _meanings(part: str) -> tuple[dict[str, KeyUse], re.Pattern[str]]:
    """The uses of keys of rows or of turns, and the pattern of names of plain numbers."""
    table = yaml.load((conf_dir() / "row_keys.yaml").read_bytes(), Loader=LOADER)
    entries = [(kind, {"keys": spec} if isinstance(spec, str) else spec) for kind, spec in table[part].items()]
    return {
        key: KeyUse(kind, " ".join(entry.get("use", "").split()))
        for kind, spec in entries
        for entry in ([spec] if isinstance(spec, dict) else spec)
        for key in entry["keys"].split()
    }, re.compile(table["numbers"])


@lru_cache(4096)
def meaning_of(key: str, part: Literal["row", "turn"] = "row") -> KeyUse:
    uses, numbers = _meanings(part)
    names = [_SEPARATORS.sub("_", name).lower() for name in (key.strip()[:60], _CAMEL_CASE.sub("_", key.strip()[:60]))]
    use = next((uses[name] for name in names if name in uses), None)
    return use or KeyUse("plain" if numbers.fullmatch(names[1]) else "")


def propose_keys(values: Mapping[str, Any], missing: Sequence[str], read: Collection[str]) -> dict[str, str]:
    """For settings that are `missing` (`prompt_key`, `response_key`), keys of a row that they could name: those whose
    name tells, and where the prompt is missing the first texts, whatever they are called, but for keys that are
    `read` and for plain data."""
    kinds = {f"{meaning_of(key).kind}_key": key for key in reversed([*values]) if isinstance(values[key], (str, list))}
    keys = {setting: kinds[setting] for setting in missing if setting in kinds}
    unnamed = [setting for setting in missing if setting not in keys]
    others = [key for key in values if key not in {*read, *keys.values()} and _is_own_text(key, values[key])]
    enough = "prompt_key" in missing and len(others) >= len(unnamed)
    return keys | dict(zip(unnamed, others if enough else (), strict=False))


def _is_own_text(key: str, value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and key.isprintable() and meaning_of(key).kind != "plain"


def is_off(value: Any, kind: str) -> bool | None:
    """Whether a flag says that an answer is bad, or not to be learned; None where it is neither yes nor no."""
    no, yes = (_YES, _NO) if kind == "unlearned" else (_NO, _YES)
    if isinstance(value, list) and value:
        items = [is_off(item, kind) for item in value]
        return True if True in items else None if None in items else False
    text = str(value).strip().lower()
    return True if text in no else False if text in yes or not is_given(value) else None


def objects_of(path: str, value: Any) -> list[dict[str, Any]]:
    """The non-empty objects of a list; the list, and each object, may be JSON text. Raises `UnfitRow`."""
    if is_number(value) or not is_given(value):
        return []
    items = json_value(path, value, list, "a list of objects") or ()
    objects = (json_value(f"{path}[{index}]", each, dict, "an object") for index, each in enumerate(items))
    return [each for each in objects if is_given(each)]


def is_of_template(path: str, key: str, value: Any, answers: bool) -> bool:
    """Whether a turn's key goes to the chat template (or, on a turn that is no answer, is reported: that it is to be
    learned). Raises `UnfitRow` for a key whose content cannot be read."""
    kind, use = meaning_of(key, "turn")
    if kind == "refused" and is_given(value) and not is_number(value):
        raise UnfitRow(f"{path}.{key} cannot be read yet; {use}")
    if kind == "learned" and not answers:
        return is_given(value) and is_off(value, kind) is False
    return value is not None and kind not in ("refused", "learned", "unlearned")


def refuse_unlearned(path: str, turn: Mapping[str, Any]) -> None:
    """Raise `UnfitRow` for an assistant turn that is not to be learned, or only in part."""
    for key, value in turn.items():
        kind = meaning_of(key, "turn").kind
        if kind in ("learned", "unlearned") and is_off(value, kind) is not False:
            got = f"{path}.{key} is {short_repr(value)}"
            raise UnfitRow(f"{got}; every assistant turn is learned, so leave the turn out")


def unread_keys(rows: Sequence[Row]) -> Iterator[CheckResult]:
    """One result for each key with advice that nothing reads, one for the keys without, and one for columns of plain
    data."""
    found = dict[str, list[Row]]()
    for row in rows:
        for key in row.unread:
            found.setdefault(key, []).append(row)
    others, plain = list[str](), list[str]()
    for key, having in found.items():
        of_turn = key.startswith(OF_TURNS)
        kind, use = meaning_of(key.removeprefix(OF_TURNS), "turn" if of_turn else "row")
        seen = f"{len(having):,} of {len(rows):,} rows, {having[0].where} is the first"
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
