"""A task that a CPU learns in a minute: reverse a string. It is generated from a seed, nothing is downloaded.

One demonstration and one prompt:
    prompt "dcab>"  response "bacd"  ground_truth "bacd"
In a pair, the copy is the rejected answer. Mixed rows are pairs and prompts in alternation.
Half of the demonstrations copy instead of reversing, so imitation cannot get beyond that noise and reinforcement
learning has something to add.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from launcher.core.problems import Problem, Problems
from launcher.core.settings import AtLeastOne, Count, Share, settings
from launcher.spec.algorithm import Kind
from launcher.spec.data import IMITATED, Dataset, RefusedRow, Row, Split

LETTERS = "abcdefghij"
SHORTEST, LONGEST = 4, 8
DISTINCT = sum(len(LETTERS) ** length for length in range(SHORTEST, LONGEST + 1))


@settings
class Reverse(Dataset):
    """Strings of 4 to 8 letters, followed by `>`; the answer is the string reversed."""

    n_prompts: AtLeastOne = 6000
    """Training prompts, all distinct."""
    n_val: Count = 256
    """Held-out prompts, disjoint from the training prompts; 0 disables validation."""
    n_demos: Annotated[Count, IMITATED] = 4000
    """Demonstrations: this many of the first training prompts (at most all), each with a response."""
    noise: Annotated[Share, IMITATED] = 0.5
    """Fraction of the demonstrations that copy the letters instead of reversing them; held-out rows have no noise."""
    data_seed: Annotated[int, Field(ge=0)] = 77
    """Seed of the strings; independent of the run's seed, so runs with other seeds see the same data."""

    @property
    def held_out(self) -> int:
        return self.n_val

    def read(self, split: Split, kind: Kind) -> Iterator[Row | RefusedRow]:
        if problems := self.problems():
            raise Problems(problems)  # drawing more strings than exist would never end
        train, val = self._strings()
        if kind in ("pairs", "mixed"):
            for number, string in enumerate(train if split == "train" else val, start=1):
                is_pair = kind == "pairs" or (split == "train" and number % 2)
                yield _pair(split, number, string) if is_pair else _row(split, number, string, None)
        elif split == "val":
            yield from (_row(split, number, string, string[::-1]) for number, string in enumerate(val, start=1))
        elif kind == "prompts":
            yield from (_row(split, number, string, None) for number, string in enumerate(train, start=1))
        else:
            copied = self._copied()
            for index, string in enumerate(train[: self.n_demos]):
                yield _row(split, index + 1, string, string if index in copied else string[::-1])

    def problems(self) -> list[Problem]:
        if self.n_prompts + self.n_val <= DISTINCT:
            return []
        got = f"{self.n_prompts} training and {self.n_val} held-out prompts are more than the {DISTINCT} strings"
        fix = f"use at most {DISTINCT - self.n_val}" if self.n_val < DISTINCT else "use smaller sizes"
        return [Problem("data.n_prompts", got, fix)]

    def fingerprint(self) -> str:
        """SHA-256 over the rows themselves, so that a change of how they are drawn changes it."""
        digest = hashlib.sha256()
        for rows in (self.read("train", "prompts"), self.read("train", "answers"), self.read("val", "answers")):
            digest.update(b"\n")
            for row in rows:
                if isinstance(row, Row):
                    digest.update(f"{row.prompt} {row.response}\n".encode())
        return digest.hexdigest()

    def _strings(self) -> tuple[list[str], list[str]]:
        """Training and held-out strings. Lengths are uniformly distributed, so that short ones help at the start."""
        draw = random.Random(self.data_seed)
        drawn: dict[str, None] = {}  # a set that keeps the order
        while len(drawn) < self.n_prompts + self.n_val:
            drawn["".join(draw.choices(LETTERS, k=draw.randint(SHORTEST, LONGEST)))] = None
        strings = list(drawn)
        return strings[: self.n_prompts], strings[self.n_prompts :]

    def _copied(self) -> frozenset[int]:
        """Indices of demonstrations that copy, with a seed of their own: noise does not change the prompts."""
        draw = random.Random(f"noise {self.data_seed}")
        demos = min(self.n_demos, self.n_prompts)
        return frozenset(draw.sample(range(demos), round(self.noise * demos)))


def _pair(split: Split, number: int, string: str) -> Row:
    """The reversed string is chosen, its copy rejected; of a palindrome, its first half is rejected."""
    wrong = string if string != string[::-1] else string[: len(string) // 2]
    return replace(_row(split, number, string, string[::-1]), rejected=wrong)


def _row(split: Split, number: int, string: str, response: str | None) -> Row:
    return Row(
        where=f"reverse:{split}:{number}",
        prompt=f"{string}>",
        response=response,
        ground_truth=string[::-1],
        data_source="reverse",
        ability="copying",
    )
