"""Raw rows to pairs and to mixed rows: what each format gives, and what is said of one that does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.data.files import Files
from launcher.data.formats import to_row
from launcher.spec.data import Message, RefusedRow, Row

SYSTEM = {"role": "system", "content": "be brief"}
USER = {"role": "user", "content": "1+1?"}
OTHER = {"role": "user", "content": "2+2?"}
RIGHT = {"role": "assistant", "content": "2"}
WRONG = {"role": "assistant", "content": "3"}
BRIEF, ASKED = Message("system", "be brief"), Message("user", "1+1?")


def row(**values: Any) -> Row:
    return Row(where="x:1", **{"response": "2", "rejected": "3"} | values)


PAIRS = [
    ({"prompt": "1+1?", "chosen": "2", "rejected": "3"}, row(prompt="1+1?")),
    ({"question": "1+1?", "chosen": "2", "rejected": "3"}, row(prompt="1+1?")),
    ({"prompt": [SYSTEM, USER], "chosen": "2", "rejected": "3"}, row(prompt=(BRIEF, ASKED))),
    ({"chosen": [USER, RIGHT], "rejected": [USER, WRONG]}, row(prompt=(ASKED,))),  # the prompt is within
    ({"prompt": [USER], "chosen": [RIGHT], "rejected": [WRONG]}, row(prompt=(ASKED,))),  # TRL's explicit prompt
    ({"prompt": [USER], "chosen": [USER, RIGHT], "rejected": [USER, WRONG]}, row(prompt=(ASKED,))),  # said twice
    ({"prompt": "1+1?", "chosen": [USER, RIGHT], "rejected": [USER, WRONG]}, row(prompt="1+1?")),
    ({"prompt": "1+1?", "chosen": "2", "rejected": [WRONG]}, row(prompt="1+1?")),
    (
        {"prompt": "1+1?", "chosen": "2", "rejected": "3", "reward_model": {"ground_truth": 2}, "data_source": "sums"},
        row(prompt="1+1?", ground_truth="2", data_source="sums"),
    ),
]


@pytest.mark.parametrize(("values", "expected"), PAIRS)
@pytest.mark.parametrize("kind", ["pairs", "mixed"])
def test_pairs(values: dict[str, Any], expected: Row, kind: Any) -> None:
    assert to_row("x:1", values, kind) == expected


def test_a_named_prompt_key_is_used() -> None:
    values = {"q": "1+1?", "prompt": "not this", "chosen": "2", "rejected": "3"}
    assert to_row("x:1", values, "pairs", prompt_key="q") == row(prompt="1+1?")
    assert (
        to_row("x:1", {"chosen": "2", "rejected": "3"}, "pairs", prompt_key="q")
        == "q is missing; it has chosen, rejected"
    )


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"prompt": "p", "rejected": "3"}, "chosen is missing; it has prompt, rejected"),
        ({"prompt": "p", "chosen": "2"}, "rejected is missing; it has chosen, prompt"),
        ({"prompt": "p", "chosen": "2", "rejectd": "3"},
         "rejected is missing; it has chosen, prompt, rejectd; did you mean rejected?"),
        ({"prompt": "p", "chosen": "2", "rejected": None}, "rejected is null; expected a value"),
        ({"prompt": "p", "chosen": "", "rejected": "3"}, "chosen is empty"),
        ({"prompt": "p", "chosen": 2, "rejected": "3"}, "chosen is int; it must be text or a list of messages"),
        ({"prompt": "", "chosen": "2", "rejected": "3"}, "prompt is empty"),
        ({"chosen": "2", "rejected": "3"},
         "prompt is missing, and chosen is no conversation that holds it; add a prompt"),
        ({"chosen": [RIGHT], "rejected": [WRONG]},
         "prompt is missing, and chosen is no conversation that holds it; add a prompt"),
        ({"prompt": "p", "chosen": "2", "rejected": "2"},
         "chosen and rejected are equal, which teaches nothing; use two different answers"),
        ({"chosen": [USER, RIGHT], "rejected": [USER, RIGHT]},
         "chosen and rejected are equal, which teaches nothing; use two different answers"),
        ({"chosen": [USER, RIGHT], "rejected": [OTHER, WRONG]},
         "chosen and rejected answer different conversations; expected equal turns before the last"),
        ({"prompt": "1+1?", "chosen": "2", "rejected": [USER, WRONG]},
         "chosen and rejected answer different conversations; expected equal turns before the last"),
        ({"prompt": "2+2?", "chosen": [USER, RIGHT], "rejected": [USER, WRONG]},
         "chosen has other turns before its answer than prompt; use the answer alone"),
        ({"chosen": [USER], "rejected": [USER, WRONG]},
         "chosen[0].role is 'user'; the last turn must be the assistant's"),
        ({"chosen": [USER, RIGHT], "rejected": [USER, WRONG | {"content": ""}]}, "rejected[1].content is empty"),
        ({"prompt": "p", "chosen": [], "rejected": [WRONG]}, "chosen is empty; expected a list of messages"),
    ],
)  # fmt: skip
def test_what_is_no_pair(values: dict[str, Any], reason: str) -> None:
    assert to_row("x:1", values, "pairs") == reason
    if "chosen" in values or "rejected" in values:
        assert to_row("x:1", values, "mixed") == reason


def test_mixed_rows_without_answers_are_prompts() -> None:
    assert to_row("x:1", {"prompt": "1+1?"}, "mixed") == Row("x:1", "1+1?")
    assert to_row("x:1", {"question": "1+1?", "answer": "2"}, "mixed") == Row("x:1", "1+1?", ground_truth="2")
    assert to_row("x:1", {"promt": "p"}, "mixed") == "prompt is missing; it has promt; did you mean prompt?"


def test_mixed_rows_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [{"prompt": "1+1?", "ground_truth": "2"}, {"prompt": "1+1?", "chosen": "2", "rejected": "3"},
             {"prompt": "1+1?", "chosen": "2", "rejected": "2"}]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second, third = Files(train_files=(str(path),)).read("train", "mixed")
    assert isinstance(first, Row) and (first.response, first.rejected, first.ground_truth) == (None, None, "2")
    assert isinstance(second, Row) and (second.response, second.rejected) == ("2", "3")
    assert isinstance(third, RefusedRow) and third.where == f"{path}:3" and "are equal" in third.reason
