"""Rows for the data benchmarks, like GSM8K's in form and length."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

NAMES = ("Natalia", "James", "Weng", "Ken", "Betty", "Julie", "Mark", "Albert", "Joy", "Randy", "Tina", "Carlos")
THINGS = ("clips", "books", "apples", "stickers", "pages", "cups", "boxes", "shirts", "tickets", "flowers")


def rows(count: int, seed: int = 0) -> Iterator[dict[str, str]]:
    """Problems that differ in names, numbers and length; each solution ends in `#### number`."""
    draw = random.Random(seed)
    for _ in range(count):
        one, other, thing = draw.choice(NAMES), draw.choice(NAMES), draw.choice(THINGS)
        a, b, c = draw.randint(2, 999), draw.randint(2, 99), draw.randint(2, 30)
        question = (
            f"{one} sold {a} {thing} in April, and then sold {b} more than that in May. Every one of the {thing} costs"
            f' {c} dollars, and "half" of the money goes to {other}.'
        )
        question += " It rained on most of the days, but nobody minded that." * draw.randint(0, 2)
        question += f" How many dollars did {one} and {other} get altogether in April and May?"
        may, sold = a + b, 2 * a + b
        solution = (
            f"In May {a}+{b}=<<{a}+{b}={may}>>{may} {thing} were sold.\n"
            f"Altogether that makes {a}+{may}=<<{a}+{may}={sold}>>{sold}.\n"
            f"They got {c}*{sold}=<<{c}*{sold}={c * sold}>>${c * sold:,}.\n#### {c * sold:,}"
        )
        yield {"question": question, "answer": solution}


def write(count: int, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows(count):
            file.write(json.dumps(row) + "\n")
