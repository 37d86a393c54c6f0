"""Arguments that Hydra does not take but whose meaning is clear, such as a path in place of a choice; and typing
mistakes, with what to type instead."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from launcher.config.names.values import HUB_ID, PATH_SETTINGS, is_local_path, words_of_value
from launcher.config.nodes import TARGET
from launcher.config.yaml_lines import leaves
from launcher.core.overrides import argument, quoted
from launcher.core.problems import Problem, short_repr, suggest, without_style
from launcher.spec.data import ENDINGS

FindRun = Callable[[str], str | None]
"""Name of a run -> its folder; None where there is no such run."""
_DASHES = dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-")
_QUOTES = dict.fromkeys("“”„‟«»", '"') | dict.fromkeys("‘’‚‛", "'")
_INVISIBLE = dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff")
_ASCII = str.maketrans(_DASHES | _QUOTES | _INVISIBLE)
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "%": 0.01}
"""By the sign behind a number; `m` may also be minutes."""
_CLOSED_BY = {"[": "]", "{": "}", "(": ")"}
HUB_ADDRESS = re.compile(
    r"(?:https?://(?:[^\s/@]{0,200}@)?)?(?:www\.)?(?:(?:huggingface|hf|modelscope)\.(?:co|cn)/|hf:/*)(?:datasets/|models/)?([\w.-]+/[\w.-]+)"
)
"""Address of a model or a dataset on a hub; the group is its id."""


# ---- paths and ids where a choice is meant


def choice_of_value(group: str, value: str, files: Mapping[str, Path], find_run: FindRun | None = None) -> list[str]:
    """The choice and the setting that a path, an id or the name of a run stands for; nothing where `value` is neither.
    `files` are the choices of the group; `find_run` tells the folder of a run's policy."""
    if value.lower() in files:
        return [f"{group}={value.lower()}"]
    if HUB_ADDRESS.match(value):  # answered with a suggestion of its id
        return []
    if group == "model" and find_run and not is_local_path(value) and (folder := find_run(value)):
        return ["model=hf", argument("model.path", folder)]
    words, (choice, setting) = words_of_value(group, value), PATH_SETTINGS.get(group, ("", ""))
    known = known_choice(group, setting, value, files) if words[:1] == [choice] else ""
    return [known] if known else words


def known_choice(group: str, setting: str, value: str, files: Mapping[str, Path]) -> str:
    """Our own choice with exactly this id, as it may set more than the id; empty where there is none."""
    name, key = without_style(value.rpartition("/")[2]), setting.partition(".")[2]
    for choice, path in files.items():
        if without_style(choice) == name and (leaf := leaves(path).get(key)) and leaf.value == value:
            return f"{group}={choice}"
    return ""


# ---- slips


def in_ascii(text: str) -> str:
    """The text with ASCII for the dashes and quotes of word processors and web pages, without invisible characters."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text).translate(_ASCII)


def number_meant(text: str) -> str:
    """The number that a text stands for, as it is typed here: `0,001`, `1 000`, `10k`, `5%`; else empty."""
    plain = in_ascii(text).strip(" \t\"'`;,=")
    if re.fullmatch(r"[1-9]\d{0,2}(?:[, _']\d{3})+", plain):
        plain = re.sub(r"\D", "", plain)
    elif re.fullmatch(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?", plain):
        plain = plain.replace(",", ".")
    elif found := re.fullmatch(r"(\d+(?:\.\d+)?) ?([kKM%])", plain):
        plain = f"{float(found[1]) * _FACTORS[found[2]]:.10g}"
    return plain if _NUMBER.fullmatch(plain) else ""


def other_characters(word: str, settable: Sequence[str]) -> Problem | None:
    """The problem with a word that has non-ASCII characters in its name, its number or as quotes; else None.
    `settable` are the groups and settings that a name may begin with."""
    plain = in_ascii(word)
    name, equals, text = plain.partition("=")
    if plain == word or name.lstrip("+~").partition(".")[0] not in settable:
        return None
    key, _, value = word.partition("=")
    number = number_meant(text)
    if name == key and not number and not set(word) & {*_QUOTES, *_INVISIBLE}:
        return None  # text values may be non-ASCII
    typed = number or (text if text.startswith(("[", "{")) else text.strip("\"'"))
    got = f"got {short_repr(value or word)}, with non-ASCII characters"
    return Problem(name, got, f"use {name}{equals}{typed}")


def several_in_one(word: str, settable: Sequence[str]) -> list[str]:
    """The arguments that a word holds, such as a shell's variable in quotes; nothing where it is one argument."""
    with suppress(ValueError):  # quotes that do not match
        parts = shlex.split(word)
        names = [part.lstrip("+~").partition("=") for part in parts]
        is_cut = any(part.count(opening) != part.count(closing) for part in parts for opening, closing in ("[]", "{}"))
        if not is_cut and len(parts) > 1 and all(to and name.partition(".")[0] in settable for name, to, _ in names):
            return parts
    return []


def without_equals(word: str, known: Mapping[str, Sequence[str]], settable: Sequence[str]) -> Problem:
    """What to type for a word that has no `=`. `known` are the choices of each group."""
    key, colon, value = word.partition(":")
    if key.partition(".")[0] in settable:
        if colon and value.strip():
            return Problem(key, f"{short_repr(word)} has a colon", f"use {argument(key, value.strip())}")
        return Problem(key, "has no value", suggest("", known[key]) if key in known else f"use {key}=VALUE")
    meant = [f"{group}={word.lower()}" for group, choices in known.items() if word.lower() in choices]
    if not meant and word.lower().endswith(ENDINGS):
        meant = [argument("data", word)]
    elif not meant and HUB_ID.fullmatch(word):
        meant = [argument("model", word), argument("data", word)]
    if meant:
        return Problem(meant[0].partition("=")[0], f"got {short_repr(word)} alone", f"use {' or '.join(meant)}")
    return Problem(short_repr(word), "names no setting", "use key=value")


def _missing_brackets(value: str) -> str | None:
    """The brackets that close those that are open; None where one is closed that is not."""
    missing = ""
    for sign in value:
        if sign in _CLOSED_BY:
            missing = _CLOSED_BY[sign] + missing
        elif sign in _CLOSED_BY.values():
            if not missing.startswith(sign):
                return None
            missing = missing[1:]
    return missing


def unreadable(key: str, value: str) -> Problem:
    """Why Hydra cannot read a value, and how to type it."""
    closing = _missing_brackets(value)
    unquoted = re.sub(r"""["'](\w+)["']\s*:""", r"\1:", value)
    is_plain = value.isprintable() and not set(value) & set('"\\$')
    if value != unquoted and TARGET not in value:
        why, typed = "has quotes around names", unquoted
    elif value[:1] in "({" and _NUMBER.fullmatch(number := value[1:-1].strip()):
        why, typed = "has brackets around a number", number
    elif re.fullmatch(r"\([^()]*\)", value):
        why, typed = "has round brackets, and a list has square ones", f"[{value[1:-1]}]"
    elif closing and is_plain and not set(value) & set("()'"):
        why, typed = "has a bracket that is not closed", value + closing
    elif closing != "":
        why, typed = "has brackets that do not match", quoted(value) if is_plain else ""
    else:
        why, typed = "cannot be read", quoted(value) if is_plain else ""
    fix = f"use {shlex.quote(f'{key}={typed}')}" if typed else "use key=value"
    return Problem(key, f"{short_repr(value)} {why}", fix)
