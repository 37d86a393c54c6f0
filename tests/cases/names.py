"""Names that people type, and five mistakes at once: `python tests/cases/names.py [foreign] [misspelt] [mistakes]
[PART OF A NAME ...]`.

first_week/names/ holds the tables: names of TRL, verl, axolotl, LLaMA-Factory and Hugging Face with the right one of
ours, misspellings of ours, and mistakes of which combinations of five that do not interfere are drawn. Each is typed
into `rlrun plan --json`; several names share a command, and those that are not answered there are asked for alone.

Ends with 1 where fewer than LEAST of a table are answered.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from launch_site import Site, site
from launches import Answer, in_a_process, value_of, with_arguments

from launcher.core.machine import cpu_count

TABLES = Path(__file__).parent / "first_week" / "names"
LEAST = {"foreign": 140 / 150, "misspelt": 1.0, "mistakes": 1.0}
FIVE, TOGETHER = 5, 8
"""Mistakes, and names, in one command."""
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
Ask = Callable[[Site, Sequence[str]], Answer]


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
    by_itself: bool = False

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
        value = yaml.safe_load(self.typed.partition("=")[2])
        found = value_of(run, name)
        return found is not None and (found == value or str(found) == str(value) or _number(found) == _number(value))


def _number(value: Any) -> float | str:
    try:
        return float(value)
    except (TypeError, ValueError):
        return f"no number: {value}"


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
            by_itself = bool(group.get("alone"))
            found.append(Name(typed, group["context"], right, "|".join(reasons), by_itself))
    return found


def _shared(chosen: Sequence[Name]) -> Iterator[list[Name]]:
    """Names that stand in one command: of one context, with different keys."""
    for context in CONTEXTS:
        of_it = [name for name in chosen if name.context == context]
        yield from ([name] for name in of_it if name.by_itself)
        others = [name for name in of_it if not name.by_itself]
        yield from (others[at : at + TOGETHER] for at in range(0, len(others), TOGETHER))


def ask_names(chosen: Sequence[Name], where: Site, ask: Ask) -> dict[Name, str]:
    """What was said to each name that is not answered."""

    def of_several(shared: list[Name]) -> list[Name]:
        words = with_arguments(CONTEXTS[shared[0].context].split(), [name.typed for name in shared])
        answer = ask(where, words)
        return [name for name in shared if not name.answered(answer)]

    def singly(name: Name) -> str:
        answer = ask(where, name.words)
        return "" if name.answered(answer) else _about(answer, name.key)

    with ThreadPoolExecutor(cpu_count()) as threads:
        left = [name for some in threads.map(of_several, _shared(chosen)) for name in some]
        lines = dict(zip(left, threads.map(singly, left), strict=True))
    return {name: line for name, line in lines.items() if line}


def _about(answer: Answer, key: str) -> str:
    lines = [f"{output['level']} {_line(output)}" for output in answer.results if output["level"] != "OK"]
    return answer.trouble or next((line for line in lines if key in line), " | ".join(lines)) or "all OK"


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


def combinations(pool: Sequence[Mistake], count: int) -> list[tuple[Mistake, ...]]:
    """`count` different sets of five mistakes that do not interfere, in random order."""
    numbers, found = random.Random(0), dict[frozenset[Mistake], tuple[Mistake, ...]]()
    while len(found) < count:
        drawn = list[Mistake]()
        for mistake in numbers.sample(pool, len(pool)):
            if len(drawn) < FIVE and not any(interfere(mistake, other) for other in drawn):
                drawn.append(mistake)
        found[frozenset(drawn)] = tuple(drawn)
    return list(found.values())


def ask_mistakes(
    drawn: Sequence[tuple[Mistake, ...]], base: Sequence[str], where: Site, ask: Ask
) -> list[tuple[Mistake, ...]]:
    """Of each combination those that are not named."""

    def unnamed(combined: tuple[Mistake, ...]) -> tuple[Mistake, ...]:
        answer = ask(where, with_arguments(base, [word for mistake in combined for word in mistake.words]))
        return tuple(mistake for mistake in combined if not mistake.named(answer))

    with ThreadPoolExecutor(cpu_count()) as threads:
        return list(threads.map(unnamed, drawn))


# ---- telling


def _names_pass(table: str, parts: Sequence[str]) -> bool:
    chosen = [name for name in names(table) if not parts or any(part in name.typed for part in parts)]
    with tempfile.TemporaryDirectory() as folder, site(Path(folder) / "here", SITE) as where:
        left = ask_names(chosen, where, in_a_process)
    for name, line in left.items():
        print(f"{name.typed}: not answered with {' or '.join([*name.right, name.none])}, but with {line[:200]}")
    good = len(chosen) - len(left)
    print(f"{table}: {good}/{len(chosen)} answered with the right one, at least {LEAST[table]:.0%}")
    return good >= LEAST[table] * len(chosen)


def _mistakes_pass(parts: Sequence[str]) -> bool:
    table = mistakes()
    drawn = [
        combined
        for combined in combinations(table.pool, 200)
        if not parts or any(part in word for mistake in combined for word in mistake.words for part in parts)
    ]
    with tempfile.TemporaryDirectory() as folder, site(Path(folder) / "here", table.site) as where:
        left = ask_mistakes(drawn, table.base, where, in_a_process)
    for mistake, times in Counter(mistake for each in left for mistake in each).most_common():
        print(f"{' '.join(mistake.words)}: not named {times} times")
    good = sum(not each for each in left)
    print(f"mistakes: all five named in {good} of {len(drawn)} commands")
    return good >= LEAST["mistakes"] * len(drawn)


def main(argv: Sequence[str]) -> int:
    tables = [table for table in LEAST if table in argv] or list(LEAST)
    parts = [part for part in argv if part not in LEAST]
    passed = [_mistakes_pass(parts) if table == "mistakes" else _names_pass(table, parts) for table in tables]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
