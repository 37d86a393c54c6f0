"""The project speaks the field's standard English: words that it used to have for itself do not come back."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = [path for folder in ("launcher", "benchmarks", "tests", "docs") for path in (ROOT / folder).rglob("*.py")]
TEXTS = [
    *PYTHON,
    *(
        path
        for folder in ("docs", "conf", "recipes")
        for ending in ("md", "yaml", "sh")
        for path in (ROOT / folder).rglob(f"*.{ending}")
    ),
    *ROOT.glob("*.md"),
    ROOT / "Makefile",
]

IDENTIFIERS = frozenset([
    "Told", "Total", "alone", "highest", "gathered", "union", "spoilt", "Spoilt", "rests", "awake", "brought",
    "even", "whole_value", "laid_like", "Apart", "own_arithmetic", "left_out", "shaped", "came", "lies", "minis",
    "heeds", "dressed", "said", "gold", "unfit", "lacks", "as_it_is", "rooted", "elsewhere", "mendable", "Verdict",
    "says", "mend", "weights_elsewhere", "Wish", "led_away", "told_by", "blotted", "blotting", "learn", "sieve",
    "foreign", "bounded", "handed", "meet", "patience", "heed", "Heed", "Asked", "Given", "Guide", "Situation",
    "Meaning", "Examined", "examine", "STAND_INS", "stand_ins", "unchosen", "put_back", "Again", "Looked",
    "Unanswered", "hand_over", "until_it_left", "Fold", "Room", "Tell", "Say", "Show", "Watch",
])  # fmt: skip
"""Names that nothing of ours may have; each has a plain one."""

PHRASES = {
    r"\bwould do\b": "use X, expected X, try X",
    r"\bis words\b": "key=value arguments",
    r"\bmend(s|ed|ing|able)?\b": "fix, fixed",
    r"\bblot(s|ted|ting)?\b": "redact",
    r"\bas promised\b|\bas it should be\b": "pass",
    r"\bdoes not wait\b": "exits at once",
    r"\bnobody asks\b|\bnobody (needs|wants|knows)\b": "say who or what",
    r"\bheed(s|ed|ing)?\b": "handle, respect",
    r"\bstands still\b|\bstood still\b": "stalled",
    r"\bruns of before\b|\bof before\b": "written by older versions",
    r"\bis no class\b": "not a class path",
    r"\bwoken\b|\bawake\b": "on the device",
    r"\bis no choice\b|\bno keyboard has\b": "is not a choice, non-ASCII characters",
    r"\bhow far the two programs are apart\b": "mismatch",
}


def defined(tree: ast.AST) -> set[str]:
    """Names of functions, classes, arguments and variables that a file makes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name.removeprefix("_"))
        elif isinstance(node, ast.arg):
            found.add(node.arg.removeprefix("_"))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id.removeprefix("_"))
    return found


def test_no_private_names():
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in PYTHON}
    any_of_them = {f"{sign}{name}" for sign in ("", "_") for name in IDENTIFIERS}
    with_some = {path: text for path, text in texts.items() if any_of_them.intersection(re.findall(r"\w+", text))}
    found = {path: defined(ast.parse(text)) & IDENTIFIERS for path, text in with_some.items()}
    assert not {path: names for path, names in found.items() if names}, "use the field's words"


def test_no_private_phrases():
    any_of_them = re.compile("|".join(PHRASES), re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]!r}; use: {better}"
        for path in TEXTS
        if path != Path(__file__) and any_of_them.search(path.read_text())
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        for phrase, better in PHRASES.items()
        if (match := re.search(phrase, line, re.IGNORECASE))
    ]
    assert not found, "\n".join(found)
