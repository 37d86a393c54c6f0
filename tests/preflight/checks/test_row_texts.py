"""Texts that show what went wrong when rows were made are named; texts like them that are meant are not."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from launcher.config.resolve import resolve
from launcher.preflight.checks import row_texts
from launcher.preflight.checks import rows as rows_check
from launcher.preflight.checks.context import Context
from launcher.spec.run import RunSpec

ASKED = [f"What is {n} and {n}? Say it." for n in range(40)]


def answers(end: str = "", begin: str = "") -> list[dict[str, Any]]:
    return [{"prompt": asked, "response": f"{begin}{2 * n}{end}"} for n, asked in enumerate(ASKED)]


def pairs(repeat: bool, role: str = "") -> list[dict[str, Any]]:
    return [{"prompt": asked, "chosen": f"{role}{asked * repeat} {2 * n}",
             "rejected": f"{role}{asked * repeat} {n + 1_000}"} for n, asked in enumerate(ASKED)]  # fmt: skip


def chats(*last: str) -> list[dict[str, Any]]:
    return [{"messages": [{"role": role, "content": f"{role} {n}"} for role in ("user", "assistant", *last)]}
            for n in range(40)]  # fmt: skip


@cache
def run_of(algorithm: str) -> RunSpec:
    words = [f"algorithm={algorithm}", "model=tiny", "data=files", "data.train_files=none.jsonl", "data.val_share=0"]
    more = ["reward=exact"] if algorithm == "grpo" else []
    return resolve([*words, *more, "data.on_bad_row=skip", "data.train_batch_size=4"])


def truths(every: int, value: str) -> list[dict[str, Any]]:
    return [{"prompt": asked, "ground_truth": value if n % every == 0 else str(n)} for n, asked in enumerate(ASKED)]


@pytest.mark.parametrize(
    ("algorithm", "rows", "expected"),
    [
        ("dpo", pairs(repeat=True), "answers begin with their prompt, 'What is 0 and 0? Say it.'"),
        ("dpo", pairs(repeat=False), ""),
        ("dpo", pairs(repeat=True, role="\n\nHuman: "), "answers begin with their prompt"),
        ("dpo", pairs(repeat=True, role="```python\n"), ""),  # code that is completed
        ("sft", [{"prompt": asked, "response": asked} for asked in ASKED], ""),  # a copy is an answer
        ("sft", [{**row, "prompt": f"<image>\n{row['prompt']}"} for row in answers()],
         "prompts hold '<image>', in place of something that is no text"),
        ("sft", [{**row, "prompt": f"{row['prompt']} <video>\n{n}\n</video>"} for n, row in enumerate(answers())], ""),
        ("grpo", [{"prompt": chat["messages"]} for chat in chats()], "prompts end with an answer, 'assistant 0'"),
        ("sft", answers() * 3, "80 of 120 rows repeat an earlier one"),
        ("grpo", truths(1000, "1") * 2, "40 of 80 rows repeat an earlier one"),
        ("sft", [*answers(), *answers()[:30]], ""),
        ("grpo", [{"prompt": f"Play level {n % 3}.", "extra_info": {"seed": n}} for n in range(40)], ""),
        ("sft", [*answers()[2:], *[{"prompt": f"{n}", "response": "NaN"} for n in range(2)]],
         "answers are 'NaN', which pandas writes where a value is missing (2 of 40 rows"),
        ("grpo", truths(8, "<NA>"), "answers are '<NA>'"),
        ("grpo", truths(2, "None"), ""),  # a label
        ("sft", [*answers()[8:], *[{"prompt": f"Who? {n}", "response": "Nat"} for n in range(8)]], ""),
        ("sft", answers(end="<|im_end|>"), "answers end with '<|im_end|>'"),
        ("sft", answers(end=" <EOS>\n"), "answers end with '<EOS>'"),
        ("sft", answers(begin="<s>", end="</s>"), "answers end with '</s>'"),
        ("sft", answers(begin="not <s>1", end="</s>"), ""),  # HTML
        ("sft", answers(end="</answer>"), ""),
        ("sft", [*answers(end="</s>")[:20], *answers()[20:]], ""),
        ("sft", answers(begin="größer".encode().decode("latin-1")), "texts such as 'grÃ¶"),
        ("sft", answers(begin="Привет, 你好 😊".encode().decode("latin-1")), "UTF-8 that was read as Latin-1"),
        ("sft", answers(begin="של".encode().decode("cp1252")), "texts such as '×©×œ"),
        ("sft", answers(begin="NÃO, São João, 25 °C, «Âge», ação, Ðe, â—"), ""),
        ("sft", answers(begin="NESCAFÉ® CITROËN™ 30 × 40, 3×², 5×® 9 É€, Ø² É° Ñ³"), ""),
        ("sft", chats("user", "assistant"), ""),
    ],
)  # fmt: skip
def test_named_where_it_is_no_chance(algorithm: str, rows: list[Any], expected: str, tmp_path: Path) -> None:
    file, run = tmp_path / "rows.jsonl", run_of(algorithm)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    context = Context(replace(run, data=replace(run.data, train_files=(str(file),))), here=True)  # type: ignore[call-arg]
    repeats = [each for each in rows_check.check(context) if each.level == "WARN" and "repeat an" in each.message]
    found = [*row_texts.check(context), *repeats]
    assert [result.level for result in found] == (["WARN"] if expected else [])
    assert all(expected in result.message and result.fix for result in found)
