"""Rows of well-known datasets, converted to the forms that `formats` reads.

gsm8k   {"question": "...", "answer": "... #### 72"}            the answer's number is the truth
math    {"problem": "...", "solution": "... \\boxed{4}"}        the last box holds the truth
hh      {"prompt": "\\n\\nHuman: Hi\\n\\nAssistant:", "chosen": " Hello", "rejected": " No"}   the prompt becomes turns
mails   {"question": "...", "answer": "...", "message_ids": ["<1@x>"]}   the truth, and the mails that hold it;
        inbox_address and query_date go to extra_info, too
auto    any of the forms of `formats`, taken as they are
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from launcher.core.boxed import boxed
from launcher.core.problems import short_repr
from launcher.data.rows import UnfitRow, type_name

Format = Literal["auto", "gsm8k", "math", "hh", "mails"]
Values = Mapping[str, Any]

STEP_BY_STEP = "Let's think step by step and output the final answer"
INSTRUCTIONS: Mapping[Format, str] = {
    "gsm8k": f'{STEP_BY_STEP} after "####".',
    "math": f"{STEP_BY_STEP} within \\boxed{{}}.",
}
"""Text appended to a question, which requests the answer in the form its reward reads."""
SOURCES: Mapping[Format, str] = {
    "gsm8k": "openai/gsm8k",
    "math": "DigitalLearningGmbH/MATH-lighteval",
    "hh": "Dahoas/full-hh-rlhf",
    "mails": "corbt/enron_emails_sample_questions",
}
"""Default `data_source` of rows, which selects their reward, here and in verl."""
MARK = "####"
NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?"
_NUMBER = re.compile(NUMBER)
_BARE_BOX = re.compile(r"\\(boxed|fbox) +([^\s{$][^$]*)")  # \boxed 7
_TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant):")


def to_standard_row(
    format: Format, values: Values, instruction: str | None, data_source: str | None, prompt_key: str | None = None
) -> Values:
    """The row in a form of `formats`. Raises `UnfitRow`."""
    if instruction is None:
        instruction = INSTRUCTIONS.get(format, "")
    if convert := {"gsm8k": _gsm8k, "math": _math, "hh": _hh, "mails": _mails}.get(format):
        row = convert(values, instruction)
    else:
        row = _auto(values, instruction, prompt_key)
    source = data_source or (None if row.get("data_source") else SOURCES.get(format))
    return row if source is None else {**row, "data_source": source}


def _auto(values: Values, instruction: str, prompt_key: str | None) -> Values:
    if not instruction:
        return values
    keys = (prompt_key,) if prompt_key else ("prompt", "question")
    if not prompt_key and all(values.get(key) is None for key in (*keys, "messages", "conversations")):  # Alpaca
        has_input = isinstance(values.get("input"), str) and values["input"].strip()
        keys = (*keys, "input" if has_input else "instruction")
    prompt = next((key for key in keys if isinstance(values.get(key), str)), None)
    if prompt is None:
        raise UnfitRow(f"{' or '.join(keys)} is no text that an instruction can follow; use data.instruction=''")
    return {**values, prompt: with_instruction(values[prompt], instruction)}


def _gsm8k(values: Values, instruction: str) -> Values:
    question, solution = _text(values, "question"), _text(values, "answer")
    _, mark, last = solution.rpartition(MARK)
    truth = number(last) if mark else None
    if truth is None:
        received = f"what follows its last {MARK} is {short_repr(last.strip(), 40)}" if mark else f"it has no {MARK}"
        raise UnfitRow(f"answer ends in no number: {received}; expected {MARK} 72")
    return solved_question(question, instruction, solution, truth)


def number(text: str) -> str | None:
    """The text as a number, without separators and currency signs; None if it is none."""
    digits = text.replace(",", "").replace("$", "").strip()
    return digits if _NUMBER.fullmatch(digits) else None


def _math(values: Values, instruction: str) -> Values:
    question, solution = _text(values, "problem"), _text(values, "solution")
    truth = boxed(_BARE_BOX.sub(r"\\\1{\2}", solution))
    if not truth:
        raise UnfitRow("solution has no closed, non-empty \\boxed{...}")
    labels = {key: values[key] for key in ("level", "type") if isinstance(values.get(key), str)}
    return {**solved_question(question, instruction, solution, truth), "extra_info": labels}


def _hh(values: Values, instruction: str) -> Values:
    prompt = _text(values, "prompt")
    before, *parts = _TURN.split(prompt)
    if not parts or before.strip():
        raise UnfitRow("prompt begins with no turn; expected '\\n\\nHuman: ...\\n\\nAssistant:'")
    turns = [
        {"role": "user" if speaker == "Human" else "assistant", "content": text.strip()}
        for speaker, text in zip(parts[::2], parts[1::2], strict=True)
    ]
    if turns[-1] == {"role": "assistant", "content": ""}:  # the empty turn in which the answer is to be written
        turns.pop()
    if not turns or turns[-1]["role"] != "user":
        raise UnfitRow("prompt does not end in a turn of Human, so there is nothing to answer")
    if empty := [index for index, turn in enumerate(turns) if not turn["content"]]:
        raise UnfitRow(f"turn {empty[0] + 1} of prompt is empty")
    turns[-1]["content"] = with_instruction(turns[-1]["content"], instruction)
    answers = {key: _text(values, key).strip() for key in ("chosen", "rejected")}
    return {"prompt": turns, **answers, "response": answers["chosen"], "ability": "alignment"}


def _mails(values: Values, instruction: str) -> Values:
    ids = values.get("message_ids")
    if not (isinstance(ids, list) and ids and all(isinstance(item, str) for item in ids)):
        raise UnfitRow(f"message_ids is {'empty' if ids == [] else type_name(ids)}; expected a list of texts")
    details = {key: str(values[key]) for key in ("inbox_address", "query_date") if values.get(key) is not None}
    return {
        "prompt": with_instruction(_text(values, "question"), instruction),
        "reward_model": {"style": "rule", "ground_truth": _text(values, "answer")},
        "extra_info": {"message_ids": ids, **details},
        "ability": "search",
    }


def solved_question(question: str, instruction: str, solution: str, truth: str) -> dict[str, Any]:
    """A row of a question with a solution: prompt with ground truth, and demonstration."""
    return {
        "prompt": with_instruction(question, instruction),
        "response": solution,
        "reward_model": {"style": "rule", "ground_truth": truth},
        "ability": "math",
    }


def with_instruction(question: str, instruction: str) -> str:
    return f"{question} {instruction}" if instruction else question


def _text(values: Values, key: str) -> str:
    value = values.get(key)
    if isinstance(value, str) and value.strip():
        return value
    received = "missing" if key not in values else "empty" if isinstance(value, str) else type_name(value)
    raise UnfitRow(f"{key} is {received}; expected text")
