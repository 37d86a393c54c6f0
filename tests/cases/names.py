"""Names that people type, and five mistakes at once.

first_week/names/ holds the tables: names of TRL, verl, axolotl, LLaMA-Factory and Hugging Face with the right one of
ours, misspellings of ours, and mistakes of which combinations of five that do not interfere are drawn. Each name, and
each combination, is typed into a `rlrun plan --json` of its own.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from launch_site import Site
from launches import Answer, value_of, with_arguments

TABLES = Path(__file__).parent / "first_week" / "names"
LEAST = {"foreign": 140 / 150, "misspelt": 1.0}
"""The share of a table that has to be answered."""
MOST = 4
"""Settings of ours that one answer may name: a list of all of them is no answer."""
CONTEXTS = {
    "sft": "algorithm=sft model=tiny data=reverse",
    "dpo": "algorithm=dpo model=tiny data=files data.train_files=pairs.jsonl data.train_batch_size=32",
    "grpo": "algorithm=grpo model=tiny data=reverse sampler.n=4",
    "ppo": "algorithm=ppo model=tiny data=reverse",
}
SITE = {"rows": {"pairs.jsonl": "pairs 300"}}
_OURS = re.compile(
    r"\b(?:algorithm|cluster|critic|data|engine|hardware|model|optim|reward|sampler|trainer)\b([.=]\w+)?"
)
_LIST = re.compile(r"(?:[\w.=-]+, ){5,}(?:or |and )?[\w.=-]+")
"""Everything that there is: no answer to one name."""
_NEAREST = re.compile(r"did you mean", re.IGNORECASE)


# ---- names


@dataclass(frozen=True)
class Name:
    """One argument with a name that is not ours, or not spelt so."""

    typed: str
    context: str
    right: tuple[str, ...]
    """Settings or choices of ours, any of which is right: `sampler.n`, `sampler=vllm`, `--resume`; or a pattern."""
    none: str = ""
    """Pattern of the reason where we have no such setting."""

    @property
    def key(self) -> str:
        return self.typed.partition("=")[0]

    @property
    def words(self) -> list[str]:
        return with_arguments(CONTEXTS[self.context].split(), [self.typed])

    def answered(self, answer: Answer) -> bool:
        """Whether a line about this name leads to the right one, also as `taken as`, or the name was taken for it."""
        about = [output for output in answer.results if self._is_about(output["subject"])]
        if any(self._leads(output["message"], output["fix"]) for output in about):
            return True
        failed = any(output["level"] == "FAIL" for output in about)
        return not failed and not answer.trouble and any(self._taken(answer.run, name) for name in self.right)

    def _is_about(self, subject: str) -> bool:
        return re.search(rf"(?<![\w.]){re.escape(self.key)}(?!\w)", subject) is not None

    def _leads(self, message: str, fix: str) -> bool:
        line, fix = _LIST.sub("", f"{message}; {fix}"), _LIST.sub("", fix)
        if len({found[0] for found in _OURS.finditer(fix)}) > MOST:
            return False
        if self.none and re.search(self.none, line.replace(self.key, ""), re.IGNORECASE):
            return not _NEAREST.search(line)
        line = re.sub(rf"(?<![\w.]){re.escape(self.typed)}(?!\w)", "", line)
        return any(re.search(_pattern(name, self.key), line) for name in self.right)

    def _taken(self, run: Mapping[str, Any], name: str) -> bool:
        """The run has the value that was typed under the other name."""
        found = value_of(run, name)
        return found is not None and _plain(found) == _plain(yaml.safe_load(self.typed.partition("=")[2]))


def _plain(value: Any) -> float | str:
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def _pattern(name: str, typed: str) -> str:
    """`optim.lr` also as `lr` in a line about `optim.lrr`, where the group is the same; a pattern stays one."""
    if "\\" in name:
        return name
    group, _, setting = name.partition(".")
    same_group = setting and typed.startswith(f"{group}.") and "." not in setting
    short = rf"|(?<![\w.]){re.escape(setting)}(?![\w.])" if same_group else ""
    begins = r"(?<![\w.])" if name[0].isalnum() else ""
    ends = r"(?!\w)" if name[-1].isalnum() else ""
    return rf"{begins}{re.escape(name)}{ends}{short}"


def names(table: str) -> list[Name]:
    """Those of `foreign` or `misspelt`."""
    found = list[Name]()
    for group in yaml.safe_load((TABLES / f"{table}.yaml").read_text(encoding="utf-8")):
        for typed, entry in group["names"].items():
            each = entry if isinstance(entry, list) else [entry]
            reasons = [one["none"] for one in each if isinstance(one, dict)]
            right = tuple(one for one in each if isinstance(one, str))
            found.append(Name(typed, group["context"], right, "|".join(reasons)))
    return found


# ---- five mistakes


@dataclass(frozen=True)
class Mistake:
    words: tuple[str, ...]
    subject: str
    message: str
    """Pattern of the line that names it."""
    touches: frozenset[str]
    """Settings and groups that it is about."""

    def named(self, answer: Answer) -> bool:
        return any(
            output["level"] in ("FAIL", "WARN")
            and re.search(self.subject, output["subject"], re.IGNORECASE)
            and re.search(self.message, _LIST.sub("", _line(output)), re.IGNORECASE)
            for output in answer.results
        )


def _line(output: Mapping[str, str]) -> str:
    return f"{output['subject']}: {output['message']}; {output['fix']}"


@dataclass(frozen=True)
class Mistakes:
    base: tuple[str, ...]
    site: Mapping[str, Any]
    pool: tuple[Mistake, ...]

    def words(self, made: Sequence[Mistake]) -> list[str]:
        """A command with these mistakes."""
        return with_arguments(self.base, [word for mistake in made for word in mistake.words])


def mistakes() -> Mistakes:
    node = yaml.safe_load((TABLES / "mistakes.yaml").read_text(encoding="utf-8"))
    where = Site(Path())
    pool = list[Mistake]()
    for entry in node["mistakes"]:
        words = tuple(where.words(entry["words"]))
        keys = [word.partition("=")[0] for word in words]
        subject = entry.get("subject", f"^{re.escape(keys[0])}$")
        pool.append(Mistake(words, subject, entry["message"], frozenset([*keys, *entry.get("touches", ())])))
    return Mistakes(tuple(where.words(node["base"])), node["site"], tuple(pool))


def interfere(one: Mistake, other: Mistake) -> bool:
    """Whether both are about one place: a setting, or a group and what is in it."""
    return any(_same_place(here, there) for here in one.touches for there in other.touches)


def _same_place(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def combinations(pool: Sequence[Mistake], count: int, most: int = 5) -> list[tuple[Mistake, ...]]:
    """`count` different sets of at most so many mistakes that do not interfere, in random order."""
    numbers, found = random.Random(0), dict[frozenset[Mistake], tuple[Mistake, ...]]()
    while len(found) < count:
        drawn = list[Mistake]()
        for mistake in numbers.sample(pool, len(pool)):
            if len(drawn) < most and not any(interfere(mistake, other) for other in drawn):
                drawn.append(mistake)
        found[frozenset(drawn)] = tuple(drawn)
    return list(found.values())
