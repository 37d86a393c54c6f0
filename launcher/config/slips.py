"""Arguments that are clear though Hydra does not take them, such as a path in place of a choice; and slips of typing,
with what to type instead."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.config.nodes import TARGET
from launcher.config.request import SourcedOverride
from launcher.config.yaml_lines import leaves
from launcher.core.overrides import argument, is_plain, quoted
from launcher.core.problems import Problem, short_repr, suggest, without_style
from launcher.spec.data import ENDINGS

_DASHES = dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-")
_QUOTES = dict.fromkeys("“”„‟«»", '"') | dict.fromkeys("‘’‚‛", "'")
_INVISIBLE = dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff")
_ASCII = str.maketrans(_DASHES | _QUOTES | _INVISIBLE)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_PAGE = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co|modelscope\.cn)/(?:datasets/|models/)?")
_HUB_PLACE = re.compile(
    rf"(?:{_HUB_PAGE.pattern}|hf:(?://)?(?:datasets/|models/)?|(?=[^/]+/[^/]+@))(?P<id>{_HUB_ID.pattern})"
    r"(?:@(?P<at>[\w.-]+))?(?:/(?:tree|blob|resolve)/(?P<revision>[\w.-]+)(?:/(?P<file>[^?]+?))?)?/?(?:\?.*)?"
)
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_VALUE_NAMES = {
    "model": ("model=hf", "model.path"), "data": ("data=hub", "data.repo"), "reward": ("reward=model", "reward.path"),
}  # fmt: skip
_HELD_OUT = re.compile(r"(?:^|[^a-z])(?:val|valid|validation|test|dev|eval)(?:[^a-z]|$)")


# ---- paths, ids and addresses where a choice is meant


def chosen_by_value(
    group: str, value: str, files: Mapping[str, Path], find_run: Callable[[str], str | None] | None = None
) -> list[str]:
    """The choice and the setting that a path, an id, an address or the name of a run stands for; nothing where
    `value` is neither. `files` are the choices of the group; `find_run` tells the folder of a run's policy."""
    if value.lower() in files:
        return [f"{group}={value.lower()}"]
    if group == "reward" and (found := re.fullmatch(r"(.+\.py)(?:::?(\w+))?", value)):
        name = [f"reward.name={found[2]}"] if found[2] else _only_function(found[1])
        return ["reward=python", argument("reward.path", found[1]), *name]
    if group == "reward" and re.match(r"https?://", value) and not _HUB_PAGE.match(value):
        return ["reward=remote", argument("reward.url", value)]
    if group not in _VALUE_NAMES or not value:
        return []
    if of_hub := _HUB_PLACE.fullmatch(value):
        return _of_hub(group, of_hub, files)
    if group == "data" and (of_files := _files_of(value)):
        return of_files
    is_path = value.startswith(("/", ".", "~")) or value.count("/") > 1 or os.path.isdir(value)
    if group == "model" and find_run and not is_path and (folder := find_run(value)):
        return ["model=hf", argument("model.path", folder)]
    if not (_HUB_ID.fullmatch(value) or (group != "data" and _is_place(value))):
        return []
    return _known_choice(group, value, files) or [_VALUE_NAMES[group][0], argument(_VALUE_NAMES[group][1], value)]


def _of_hub(group: str, found: re.Match[str], files: Mapping[str, Path]) -> list[str]:
    """The overrides for an address of a hub: its repository, and the revision and file that it names."""
    choice, setting = _VALUE_NAMES[group]
    overrides = _known_choice(group, found["id"], files) or [choice, argument(setting, found["id"])]
    revision = found["at"] or found["revision"]
    if revision and revision != "main":
        overrides.append(argument(f"{group}.revision", revision))
    if group == "data" and found["file"]:
        overrides.append(argument("data.train_files", found["file"]))
    return overrides


def cleaned(word: str, settable: Sequence[str]) -> str:
    """A word with Hydra's `null` for Python's; its value without `file://`, and of a setting that names a repository
    without a hub's address."""
    name, equals, value = word.partition("=")
    if value == "None":
        return f"{name}=null"
    key = name.lstrip("+~")
    return f"{name}={_without_scheme(key, value)}" if equals and key.partition(".")[0] in settable else word


def _without_scheme(key: str, value: str) -> str:
    value = re.sub(r"(^|[\[,'\"])file://(?:localhost(?=/))?", r"\1", value)
    found = _HUB_PLACE.fullmatch(value) if key in [setting for _, setting in _VALUE_NAMES.values()] else None
    return found["id"] if found and not (found["at"] or found["revision"]) else value


def _is_place(value: str) -> bool:
    """Whether it can only be a path, or is one that is there."""
    return value.startswith(("/", "./", "../", "~")) or value.count("/") > 1 or os.path.isdir(_path(value))


def _path(value: str) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError:  # the home of nobody
        return Path(value)


def _known_choice(group: str, value: str, files: Mapping[str, Path]) -> list[str]:
    """The choice of ours that has this very id: it knows more of it than the id alone."""
    setting = _VALUE_NAMES[group][1].partition(".")[2]
    name = without_style(value.rpartition("/")[2])
    for choice, path in files.items():
        if without_style(choice) == name and (leaf := leaves(path).get(setting)) and leaf.value == value:
            return [f"{group}={choice}"]
    return []


def _files_of(value: str) -> list[str]:
    """Rows in files: one, a pattern, `[a,b]` or `a,b`, or all of a folder, where names tell which are held out."""
    is_list, parts = value.startswith("[") and value.endswith("]"), value.strip("[]").split(",")
    if is_list or (len(parts) > 1 and all(os.path.isfile(_path(name)) for name in parts)):
        names = [name.strip(" '\"") for name in parts]
        fits = all(name.lower().endswith(ENDINGS) for name in names)
        return ["data=files", f"data.train_files=[{','.join(map(quoted, names))}]"] if fits else []
    path = _path(value)
    if os.path.isdir(path):
        names = sorted(each.name for each in path.iterdir() if each.name.lower().endswith(ENDINGS))
        held_out = [name for name in names if _HELD_OUT.search(name.lower())]
        rest = [name for name in names if name not in held_out] or held_out
        split = [("train_files", rest), ("val_files", held_out if rest != held_out else [])]
        full = {key: ",".join(quoted(f"{value.rstrip('/')}/{name}") for name in of) for key, of in split if of}
        return ["data=files", *(f"data.{key}=[{text}]" for key, text in full.items())] if full else []
    is_file = (
        value.lower().endswith(ENDINGS) or os.path.isfile(path) or "*" in value or value.startswith(("/", "./", "~"))
    )
    return ["data=files", argument("data.train_files", value)] if is_file else []


def _only_function(path: str) -> list[str]:
    """The name of a file's only function, where that is not the one that is looked for."""
    try:
        source = _path(path).read_text(encoding="utf-8") if os.path.isfile(_path(path)) else ""
    except (OSError, ValueError):
        return []  # the reward says so
    names = [name for name in re.findall(r"^(?:async )?def (\w+)", source, re.MULTILINE) if not name.startswith("_")]
    return [f"reward.name={names[0]}"] if len(names) == 1 and names != ["compute_score"] else []


# ---- slips


def in_ascii(text: str) -> str:
    """With ASCII characters for the dashes, quotes and invisible characters of word processors and web pages."""
    return text if text.isascii() else unicodedata.normalize("NFKC", text).translate(_ASCII)


_UNITS: Mapping[str, Mapping[str, float]] = {
    "gb": {"g": 1, "gb": 1, "gib": 1, "t": 1024, "tb": 1024, "tib": 1024, "mb": 1 / 1024, "mib": 1 / 1024},
    "mb": {"m": 1, "mb": 1, "mib": 1, "g": 1024, "gb": 1024, "gib": 1024},
    "s": {"s": 1, "sec": 1, "seconds": 1, "m": 60, "min": 60, "minutes": 60, "h": 3600, "hours": 3600},
}
"""Of settings whose names end with a unit, what people type beside it."""


def number_meant(text: str, unit: str = "") -> str:
    """The number that a text stands for, as it is typed here: `1 000`, `0,001`, `10k`, `5%`, `10^-5`; in a setting's
    `unit` also `24GiB` and `10min`; else empty."""
    plain = re.sub(r"(?<=\d)[ _'](?=\d{3}(?!\d))", "", in_ascii(text).strip(" \t\"'`;,"))
    with_unit = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-zA-Z]+)", plain)
    if with_unit and (times := _UNITS.get(unit, {}).get(with_unit[2].lower())):
        plain = f"{float(with_unit[1]) * times:.10g}"
    elif found := re.fullmatch(r"([-+]?[\d.]+) ?([kKmM])", plain):
        plain = f"{float(found[1]) * (1e3 if found[2] in 'kK' else 1e6):.0f}" if found[1].count(".") < 2 else ""
    elif found := re.fullmatch(r"([\d.]+) ?%", plain):
        plain = f"{float(found[1]) / 100:g}" if found[1].count(".") < 2 else ""
    elif found := re.fullmatch(r"(?:([\d.]+) ?[*x] ?)?10(?:\^|\*\*)\(?(-?\d+)\)?", plain):
        plain = f"{found[1] or '1'}e{found[2]}"
    elif re.fullmatch(r"[1-9]\d{0,2}(?:,\d{3})+", plain):
        plain = plain.replace(",", "")
    elif re.fullmatch(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?", plain):
        plain = plain.replace(",", ".")
    return plain if _NUMBER.fullmatch(plain) else ""


def before_parsing(word: str, known: Mapping[str, Sequence[str]], settable: Sequence[str]) -> Problem | None:
    """What is wrong with a word that Hydra would read as something else, or not at all. `known` are the choices of each
    group, `settable` the groups and first names."""
    key, equals, value = word.partition("=")
    key = key.lstrip("+~")
    problem = None if word.isascii() else _of_other_characters(word, key, value, settable)
    if not problem and (value.startswith("=") or not re.fullmatch(r"[\w.@/-]*", key)):
        problem = misplaced(word, settable)
    if not problem and not equals and not word.startswith("~"):
        problem = _without_equals(word, known, settable)
    return problem


def _of_other_characters(word: str, key: str, value: str, settable: Sequence[str]) -> Problem | None:
    """Characters that were not meant, such as a minus sign of a web page."""
    plain = in_ascii(word)
    name, _, text = plain.partition("=")
    typed = text.strip("\"'")
    known = name.lstrip("+~").partition(".")[0] in settable
    suspicious = name != word.partition("=")[0] or number_meant(typed) or text.startswith(('"', "'", "[", "{"))
    if not known or plain == word or not (suspicious or any(sign in word for sign in _INVISIBLE)):
        return None
    got = f"got {short_repr(value or word)}, with non-ASCII characters"
    typed = number_meant(typed) or (text if text.startswith(("[", "{")) else typed)
    return Problem(name or key, got, f"use {name}={typed}" if "=" in plain else f"use {plain}")


def backslash(key: str, value: str) -> Problem | None:
    """A path as Windows writes it."""
    plain, drive = value.replace("\\", "/"), re.match(r"([A-Za-z]):/", value.replace("\\", "/"))
    if plain == value or os.path.exists(value) or not (drive or os.path.exists(_path(plain))):
        return None
    here = f"use one of this machine, such as /mnt/{drive[1].lower()}{plain[2:]}" if drive else ""
    return Problem(key, f"got {short_repr(value)}, a path of Windows", here or f"use {argument(key, plain)}")


def join_values(
    words: Sequence[SourcedOverride], settable: Sequence[str]
) -> tuple[list[SourcedOverride], list[Problem]]:
    """The words, and a problem for each whose value stands apart: `sampler.n 4`, `sampler.n = 4`, `sampler.n: 4`."""
    rest, problems, left = list[SourcedOverride](), list[Problem](), deque(words)
    while left:
        word = left.popleft()
        key, equals, value = word.text.partition("=")
        follows = left[0].text if left else ""
        ours = key.strip().rstrip(":").partition(".")[0] in settable
        beside = follows[1:] if follows.startswith("=") and not equals else follows  # `= 4` or `=4`
        if not equals and re.fullmatch(r"[\w.]+:", key) and follows and "=" not in follows:
            value = _yaml_value(left)
            name = key.rstrip(":")
            if ours:
                got = f"{short_repr(f'{key} {value}')} has a colon"
                problems.append(Problem(name, got, f"use {_in_shell(name, value)}"))
            else:
                rest.append(replace(word, text=f"{name}={value}"))
        elif ours and key.rstrip() != key:
            fix = f"use {argument(key.strip(), value.strip())}"
            problems.append(Problem(key.strip(), f"{short_repr(word.text)} has a space in it", fix))
        elif not ours or value or not follows or "=" in beside or not re.fullmatch(r"[\w.]+", key) or (
            equals and not _NUMBER.fullmatch(follows)
        ):  # fmt: skip
            rest.append(word)
        else:
            left.popleft()
            value = beside or (left.popleft().text if left and "=" not in left[0].text else "VALUE")
            got = f"{short_repr(f'{word.text} {follows}'.strip())} has a space in it"
            problems.append(Problem(key, got, f"use {argument(key, value)}"))
    return rest, problems


def _yaml_value(left: deque[SourcedOverride]) -> str:
    """The value that follows `key:`, which has spaces of its own where it stands in braces."""
    value = left.popleft().text
    while left and value.count("{") > value.count("}"):
        value += f" {left.popleft().text}"
    return value


def _in_shell(key: str, value: str) -> str:
    word = f"{key}={value}" if value[:1] in ("[", "{") else argument(key, value)
    return word if is_plain(word.replace("=", "")) else shlex.quote(word)


def misplaced(word: str, settable: Sequence[str]) -> Problem | None:
    """Signs of programs around a setting's name or its `=`: `optim[lr]=1`, `optim.lr:=1`, `optim->lr=1`, `lr==1`."""
    whole = in_ascii(word).strip()
    name, _, value = (whole.strip("[](){}\"'`") if whole[:1] in set("[({\"'`") else whole).partition("=")
    key = re.sub(r"\.{2,}", ".", re.sub(r"->|\[|::?|,", ".", name.strip().replace("]", ""))).strip(".")
    value = value.lstrip("= ")
    if whole.startswith(f"{key}={value}") or not re.fullmatch(r"\w+(\.\w+)*", key):
        return None
    known = key.partition(".")[0] in settable and value
    return Problem(key, f"{short_repr(word)} cannot be read", f"use {_in_shell(key, value)}") if known else None


def _without_equals(word: str, known: Mapping[str, Sequence[str]], settable: Sequence[str]) -> Problem:
    """What to type for a word that has no `=`."""
    key, colon, value = word.partition(":")
    top = key.partition(".")[0]
    if colon and top in settable and value.strip():
        return Problem(key, f"{short_repr(word)} has a colon", f"use {argument(key, value.strip())}")
    if not colon and top in settable:
        fix = suggest("", known[key]) if key in known else f"use {key}=VALUE"
        return Problem(key, "has no value", fix)
    named = {group: f"{group}={word.lower()}" for group, choices in known.items() if word.lower() in choices}
    if word.lower().endswith(ENDINGS):
        named = {"data": argument("data", word)}
    elif not named and (_is_place(word) or _HUB_ID.fullmatch(word)):
        named = {"model": argument("model", word), "data": argument("data", word)}
    if named:
        return Problem(next(iter(named)), f"got {short_repr(word)} alone", f"use {' or '.join(named.values())}")
    return Problem(short_repr(word), "names no setting", "use key=value")


def unreadable(key: str, value: str) -> Problem:
    """Why Hydra cannot read a value, and how it is typed."""
    opened, closed = (sum(value.count(sign) for sign in signs) for signs in ("[{(", "]})"))
    open_quote = next((sign for sign in "'\"" if value.count(sign) % 2), "")
    unquoted = re.sub(r"""["'](\w+)["']\s*:""", r"\1:", value)
    if value != unquoted and TARGET not in value:
        return Problem(key, f"{short_repr(value)} has quotes around names", f"use {shlex.quote(f'{key}={unquoted}')}")
    if re.fullmatch(r"\([^()]*\)", value):
        return Problem(key, f"got {short_repr(value)}; a list has square brackets", f"use '{key}=[{value[1:-1]}]'")
    if opened != closed:
        why = "has a bracket that is not closed" if opened > closed else "closes a bracket that is not open"
    else:
        why = f"has an open {open_quote}" if open_quote else "cannot be read"
    return Problem(key, f"{short_repr(value)} {why}", _in_quotes(key, value))


def _in_quotes(key: str, value: str) -> str:
    """The argument as Hydra and a shell read it: an open list is closed, and what is no plain name is quoted."""
    missing = "]" * (value.count("[") - value.count("]"))
    if missing and value.isprintable() and not set(value) & set("{}()'\"\\$"):
        return f"use '{key}={value}{missing}'"
    plain = value.isprintable() and not set(value) & set('"\\$')
    return f"use {shlex.quote(f'{key}={quoted(value)}')}" if plain else "use key=value"
