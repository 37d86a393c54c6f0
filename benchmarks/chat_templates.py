"""What is learned of a chat, for the chat templates that TRL and axolotl ship, against what inference shows.

    python benchmarks/chat_templates.py AXOLOTL

AXOLOTL is a wheel of axolotl, or a folder that holds one; TRL must be importable. Each template gets nine rows. The
reference, written here without our encoder, is inference: for each assistant turn, the prompt that the template opens
for the turns before it, and what must follow: the rest of the whole chat's text, or, where the prompt opens a reasoning
that the text lacks, that reasoning, its end, and the answer.

Ours must equal it in all that inference would sample. A refused row must say what to change. Ends with 1 otherwise.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import trl  # type: ignore[import-not-found]
from rich import box
from rich.console import Console
from rich.table import Table
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from launcher.core.user_code import try_call
from launcher.data.files import Files
from launcher.data.formats import to_row
from launcher.spec.data import Message, RefusedRow, Row
from launcher.text.encoder import Encoder

THOUGHT, CALL = (
    "It is a sum.",
    {"type": "function", "id": "call00001", "function": {"name": "add", "arguments": {"a": 1}}},
)
TOOL = {"type": "function", "function": {
    "name": "add", "description": "Adds.",
    "parameters": {
        "type": "object", "properties": {"a": {"type": "integer", "description": "One."}}, "required": ["a"]},
}}  # fmt: skip


def turn_of(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


ASKED, ANSWERED = turn_of("user", "What is 1+1?"), turn_of("assistant", "It is 2.")
ROWS: dict[str, dict[str, Any]] = {
    "one": {"messages": [ASKED, ANSWERED]},
    "system": {"messages": [turn_of("system", "Be brief."), ASKED, ANSWERED]},
    "three": {"messages": [
        ASKED, ANSWERED, turn_of("user", "And 2+2?"), turn_of("assistant", "4"), turn_of("user", "And 3+3?"),
        turn_of("assistant", "That is 6.")]},
    "thinking": {"messages": [ASKED, turn_of("assistant", "It is 2.", reasoning_content=THOUGHT, thinking=THOUGHT)]},
    "tools": {"tools": [TOOL], "messages": [ASKED, turn_of("assistant", "", tool_calls=[CALL])]},
    "tool turn": {"tools": [TOOL], "messages": [
        ASKED, turn_of("assistant", "", tool_calls=[CALL]),
        turn_of("tool", "2", name="add", tool_call_id="call00001"), ANSWERED]},
    "thought, tool": {"tools": [TOOL], "messages": [
        ASKED, turn_of("assistant", "", tool_calls=[CALL], reasoning_content=THOUGHT, thinking=THOUGHT),
        turn_of("tool", "It is two.", name="add", tool_call_id="call00001"), ANSWERED]},
    "empty": {"messages": [ASKED, turn_of("assistant", "Hm."), turn_of("user", "Go."), turn_of("assistant", "")]},
    "text": {"prompt": "What is 1+1?", "response": "<think>\nIt is a sum.\n</think>\n\nIt is 2."},
}  # fmt: skip


@dataclass(frozen=True)
class Template:
    source: str
    name: str
    text: str


def of_trl() -> Iterator[Template]:
    """TRL's originals, without its variants for training."""
    folder = Path(trl.__file__).parent / "chat_templates"
    for file in sorted(folder.glob("*.jinja")):
        if not file.stem.endswith("_training"):
            yield Template("TRL", file.stem, file.read_text(encoding="utf-8"))


def of_axolotl(place: Path) -> Iterator[Template]:
    wheel = place if place.is_file() else next(place.glob("axolotl-*.whl"))
    with zipfile.ZipFile(wheel) as files:
        for name in sorted(files.namelist()):
            if "chat_templates/templates/" in name and name.endswith(".jinja"):
                yield Template("axolotl", Path(name).stem, files.read(name).decode())


def tokenizer_for(template: Template) -> PreTrainedTokenizerFast:
    """A token for each byte, a few pairs of them, and one for each mark that the template writes."""
    marks = re.findall(
        r"\[\|[^\]]+\|\]|<[|｜][^<>{}'\"\s]*[|｜]?>|<[a-z_]+[|｜]>|</?[a-z_]{1,20}>|\[/?[A-Z_]{2,}\]", template.text
    )
    special = list(dict.fromkeys(["<pad>", "<bos>", "<eos>", *marks]))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("Ċ", "Ċ"), ("Ġ", "t"), ("i", "s"), ("Ġ", "i")]
    words = [*letters, *(one + other for one, other in pairs)]
    made = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, pairs))
    cut = pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(mark, normalized=False) for mark in special])
    found = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")
    found.chat_template = template.text
    return found


# ---- inference


@dataclass(frozen=True)
class Exchange:
    """One assistant turn: what inference shows, and what must be sampled."""

    prompt: list[int]
    target: str


class Inference:
    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        probe = [turn_of("user", "Forty-two.")]
        self.parts = self._plain(probe) is None and self._plain([_parted(probe[0])]) is not None

    def _plain(self, turns: list[dict[str, Any]]) -> str | None:
        text = try_call(partial(self.tokenizer.apply_chat_template, turns, tokenize=False))
        return text if isinstance(text, str) and "Forty-two." in text else None

    def write(self, turns: list[dict[str, Any]], tools: Any, opened: bool) -> str:
        turns = [_parted(turn) for turn in turns] if self.parts else turns
        if not any("tool_calls" in turn for turn in turns):
            return self._template(turns, tools, opened)
        for form in (turns, *([_other(turn, *forms) for turn in turns] for forms in OTHER_FORMS)):
            text = try_call(partial(self._template, form, None, opened))
            if isinstance(text, str) and "add" in text:
                return self._template(form, tools, opened)
        raise AssertionError("no form of its calls is written")

    def _template(self, turns: list[dict[str, Any]], tools: Any, opened: bool) -> str:
        return self.tokenizer.apply_chat_template(turns, tools=tools, tokenize=False, add_generation_prompt=opened)

    def asked(self, row: dict[str, Any]) -> Iterator[Exchange]:
        turns = row.get("messages") or [turn_of("user", row["prompt"]), turn_of("assistant", row["response"])]
        for place, turn in enumerate(turns):
            if turn["role"] == "assistant":
                opened = self.write(turns[:place], row.get("tools"), True)
                whole = self.write(turns[: place + 1], row.get("tools"), False)
                inline = re.match(r"<think>\s*(.*?)\s*</think>\s*", turn["content"] or "", re.DOTALL)
                if inline and re.match(r"\s*</think>\s*<think>", whole[len(opened) :]):  # it reads a field alone
                    turn = turn_of("assistant", turn["content"][inline.end() :], reasoning_content=inline[1])
                    whole = self.write([*turns[:place], turn], row.get("tools"), False)
                yield Exchange(self.ids(opened), target(opened, whole, turns[place - 1]["content"], turn))

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids


def target(opened: str, whole: str, asked: str, turn: dict[str, Any]) -> str:
    if whole.startswith(opened):
        return whole[len(opened) :]
    tail = opened[opened.rindex(asked) :] if len(asked) > 2 and asked in opened else ""
    if tail and tail in whole:  # what stands before it is written otherwise
        return whole.rpartition(tail)[2]
    content = turn["content"] or ""
    inline = re.match(r"\s*<think>\s*(.*?)\s*</think>\s*", content, re.DOTALL)
    thought, answer = (inline[1], content[inline.end() :]) if inline else ("", content)
    if begun := re.search(r"<think>\s*\Z", opened):
        rest = whole[begun.start() :]
        if rest.startswith("<think>"):  # as the template writes it, empty or not
            return rest.removeprefix("<think>").lstrip()
        return f"{turn.get('reasoning_content', thought)}\n</think>\n\n{rest.lstrip()}"
    if opened.rstrip().endswith("</think>"):
        content = answer
    return whole[whole.rindex(content.strip()) :] if content.strip() else _after_common(opened, whole)


def _after_common(opened: str, whole: str) -> str:
    """What `whole` has behind what both begin with, as whole special tokens."""
    same = next((n for n, (a, b) in enumerate(zip(opened, whole, strict=False)) if a != b), len(opened))
    while whole[same - 1] in "<|[":
        same -= 1
    closing = re.search(r"(</think>|<channel\|>)\s*\Z", opened)  # the prompt says that nothing is thought
    return whole[same:].rpartition(closing[1])[2].lstrip() if closing else whole[same:]


def _parted(turn: dict[str, Any]) -> dict[str, Any]:
    content = turn.get("content")
    return {**turn, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else turn


OTHER_FORMS = ((True, ""), (False, None), (True, None))
"""Arguments as text, and the content beside calls: what DeepSeek's templates expect is not what Qwen's do."""


def _other(turn: dict[str, Any], as_text: bool, content: str | None) -> dict[str, Any]:
    if "tool_calls" not in turn:
        return turn
    arguments = '{"a": 1}' if as_text else {"a": 1}
    call = {**CALL, "function": {"name": "add", "arguments": arguments}}
    return {**turn, "content": content, "tool_calls": [call]}


# ---- outcomes


@dataclass
class Outcome:
    sign: str
    sequences: int = 1
    reason: str = ""
    wrong: bool = False


@dataclass
class Judged:
    template: Template
    outcomes: dict[str, Outcome] = field(default_factory=dict)


def judge(template: Template) -> Judged:
    tokenizer = tokenizer_for(template)
    encoder, found = Encoder(tokenizer, Files(max_prompt_length=2**20, max_response_length=2**20)), Judged(template)
    for name, values in ROWS.items():
        found.outcomes[name] = _outcome(tokenizer, encoder, values)
    return found


def _outcome(tokenizer: PreTrainedTokenizerFast, encoder: Encoder, values: dict[str, Any]) -> Outcome:
    row = to_row("row:1", values, "answers")
    if isinstance(row, str) and "is empty" in row:  # files with such rows are refused
        turns = tuple(Message(turn["role"], turn["content"]) for turn in values["messages"])
        row = Row("row:1", turns)
    made = RefusedRow("", row, "") if isinstance(row, str) else encoder.demonstration(0, row)
    if isinstance(made, RefusedRow):
        return Outcome("refused", reason=made.reason, wrong=";" not in made.reason)
    ours = [run for one in made.sequences for run in _learned(one.ids, one.mask)]
    stops, reference = set(encoder.stop_tokens.ids), Inference(tokenizer)
    asked = list(reference.asked(values))
    if len(ours) != len(asked):
        return Outcome("wrong", reason=f"{len(ours)} answers of {len(asked)}", wrong=True)
    for (before, learned), expected in zip(ours, asked, strict=True):
        sampled = _until_stop(learned, stops)
        texts = tokenizer.decode(sampled), tokenizer.decode(_until_stop(reference.ids(expected.target), stops))
        unended = [texts[1] + tokenizer.decode([end]) for end in stops]
        if before != expected.prompt:
            return Outcome("wrong", reason=f"prompt: {_apart(tokenizer, before, expected.prompt)}", wrong=True)
        if texts[0] not in (texts[1], *unended) or sampled[-1] not in stops:
            return Outcome("wrong", reason=f"answer: {texts[0]!r}, not {texts[1]!r}", wrong=True)
    return Outcome("inference", len(made.sequences))


def _learned(ids: list[int], mask: list[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Of each answer, the tokens before it and its own."""
    place = 0
    for marked, run in groupby(mask):
        length = len(list(run))
        if marked:
            yield ids[:place], ids[place : place + length]
        place += length


def _until_stop(ids: list[int], stops: set[int]) -> list[int]:
    place = next((place for place, number in enumerate(ids) if number in stops), len(ids))
    return ids[: place + 1]


def _apart(tokenizer: PreTrainedTokenizerFast, one: list[int], other: list[int]) -> str:
    place = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    ours, theirs = (tokenizer.decode(ids[max(place - 3, 0) : place + 20]) for ids in (one, other))
    return f"{ours!r}, not {theirs!r}"


# ---- the table


def main() -> int:
    judged = [judge(one) for one in (*of_trl(), *of_axolotl(Path(sys.argv[1])))]
    outcomes = [(one.template, name, outcome) for one in judged for name, outcome in one.outcomes.items()]
    console, count = Console(width=150), Counter(outcome.sign for _, _, outcome in outcomes)
    console.print(_table(judged))
    for template, name, outcome in outcomes:
        if outcome.reason and (outcome.wrong or outcome.sign == "refused"):
            note = f"{template.source} {template.name}, {name}: {outcome.reason}"
            console.print(note, markup=False, highlight=False, soft_wrap=True)
    wrong = sum(outcome.wrong for *_, outcome in outcomes)
    counted = f"{count['inference']} as inference shows, {count['refused']} refused, {wrong} wrong"
    console.print(f"{count.total()} rows of {len(judged)} templates: {counted}")
    return int(wrong > 0)


def _table(judged: list[Judged]) -> Table:
    table = Table("template", *ROWS, box=box.SIMPLE, title="What is learned", title_justify="left")
    for one in judged:
        cells = [
            f"[red]{outcome.sign}" if outcome.wrong
            else f"{outcome.sign} {outcome.sequences}" if outcome.sequences > 1 else outcome.sign
            for outcome in one.outcomes.values()
        ]  # fmt: skip
        table.add_row(f"{one.template.source} {one.template.name}", *cells)
    return table


if __name__ == "__main__":
    raise SystemExit(main())
