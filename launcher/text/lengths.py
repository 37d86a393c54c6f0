"""Token lengths of many prompts, faster than one by one: equal numbers, the template written once, batches tokenised.

Most of a prompt's time goes into the chat template. For a single user's turn a template writes the same text before and
after the content, whatever the content is, unless it looks into the content. `ChatFrame` finds out whether and for what
this one looks; rows that could be told apart are written by the template itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jinja2 import TemplateSyntaxError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from launcher.spec.algorithm import Kind
from launcher.spec.data import RefusedRow, Row, Text
from launcher.text.encoder import Encoder, Tokens, Unwritable, single_user_text
from launcher.text.word_cuts import PieceCounter

BATCH = 1024
Count = tuple[int, int] | str
SAMPLE = 64  # texts on which a shortcut must agree with the tokenizer
_STRIPS = ("strip", "lstrip", "rstrip", "trim")
_PROBES = (" \n(7z)\t ", "\n x\u00e9 9 \r\n")  # with blanks at their ends: a template that trims them is found out


@dataclass(frozen=True)
class ChatFrame:
    """What a chat template writes around a user's turn, and the texts that it looks for in one."""

    before: str
    after: str
    looked_for: frozenset[str]
    whole: frozenset[str]
    """Bare words of them that are only compared for equality, with roles."""

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Those that may stand anywhere in a turn."""
        return tuple(text for text in self.looked_for if text not in self.whole)

    @classmethod
    def of(cls, encoder: Encoder) -> ChatFrame | None:
        """None where the template changes contents, or cannot be read."""
        if not encoder.templated:
            return None
        read = _looked_for(str(encoder.tokenizer.chat_template))
        found = set()
        for probe in _PROBES:
            try:
                parts = encoder.opening(probe).split(probe)
            except Unwritable:
                return None
            if len(parts) != 2:
                return None
            found.add(tuple(parts))
        if read is None or len(found) > 1:
            return None
        before, after = found.pop()
        return cls(before, after, *read)

    def text(self, content: str) -> str | None:
        """The turn as the template writes it; None where it might write this one otherwise."""
        if content in self.looked_for or any(text in content for text in self.parts):
            return None
        return f"{self.before}{content}{self.after}"


def _looked_for(template: str) -> tuple[frozenset[str], frozenset[str]] | None:
    """Texts that the template compares something with or cuts it at, and bare words that it takes for equal only."""
    try:
        environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
        tree = environment.parse(re.sub(r"{%-?\s*(end)?generation\s*-?%}", "", template))  # marks of training masks
    except TemplateSyntaxError:
        return None
    if any(_measures(node) for node in tree.find_all(nodes.Filter)):
        return None
    named = {const.value for node in tree.find_all(nodes.Assign) for const in _texts(node.node)}  # and used elsewhere
    found, inside = set(named), set(named)
    for node in tree.find_all((nodes.Call, nodes.Filter, nodes.Test, nodes.Compare)):
        constants = set(_constants(node))
        found |= constants
        equal = isinstance(node, nodes.Compare) and all(operand.op in ("eq", "ne") for operand in node.ops)
        inside |= set() if equal else constants
    whole = {text for text in found - inside if text.isidentifier()}
    return frozenset(found), frozenset(whole)


def _measures(node: nodes.Filter) -> bool:
    """Whether it counts something else than the turns."""
    counts = node.name in ("length", "count", "wordcount")
    return counts and not (
        isinstance(node.node, nodes.Name) and node.node.name in ("messages", "tools", "loop_messages")
    )


def _texts(node: nodes.Node) -> Iterator[nodes.Const]:
    held = [node] if isinstance(node, nodes.Const) else node.find_all(nodes.Const)
    return (const for const in held if isinstance(const.value, str) and const.value.strip())


def _constants(node: nodes.Node) -> Iterator[str]:
    """The texts that stand directly in a question about something."""
    if isinstance(node, nodes.Compare):
        sides = [node.expr, *(operand.expr for operand in node.ops)]
    elif isinstance(node, nodes.Call | nodes.Filter | nodes.Test):
        named = node.node.attr if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr) else ""
        if named in _STRIPS or (isinstance(node, nodes.Filter) and node.name in _STRIPS):
            return  # the probes have blanks at their ends
        sides = [*node.args, *(pair.value for pair in node.kwargs)]
    else:
        return
    for side in sides:
        for constant in side.find_all(nodes.Const) if not isinstance(side, nodes.Const) else [side]:
            if isinstance(constant.value, str) and constant.value:
                yield constant.value


class Lengths:
    """Counts tokens of rows as `encoder` writes them."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.around = encoder, ChatFrame.of(encoder)
        self.words: PieceCounter | None = None
        self.asked = False
        """Whether it was found out if words can be counted."""

    def of(self, rows: Sequence[Row], kind: Kind) -> list[Count]:
        """Tokens of each row's prompt and of its longer answer (0 without one), or why it cannot be written."""
        found = list[Count]()
        for start in range(0, len(rows), BATCH):
            some = rows[start : start + BATCH]
            prompts = [row for row in some if kind != "answers" and row.rejected is None]
            counts = iter(self._counts([row.prompt for row in prompts]))
            asked = {id(row) for row in prompts}
            found += [next(counts) if id(row) in asked else self._demonstrated(row) for row in some]
        return found

    def _counts(self, prompts: Sequence[Text]) -> list[Count]:
        self._choose_method(prompts)
        counts: list[Count | None] = [self._quickly(prompt) for prompt in prompts]
        texts = dict[int, str]()
        for place in (place for place, count in enumerate(counts) if count is None):
            try:
                texts[place] = self._opening(prompts[place])
            except Unwritable as error:
                counts[place] = str(error)
        made = dict(zip(texts, _counted(self.encoder, list(texts.values())), strict=True))
        return [(made[place], 0) if count is None else count for place, count in enumerate(counts)]

    def _choose_method(self, prompts: Sequence[Text]) -> None:
        """Decide from the first prompts whether words can be counted."""
        if self.around and not self.asked:
            texts = [
                text for prompt in prompts if (text := single_user_text(prompt)) is not None and self.around.text(text)
            ]
            texts, self.asked = texts[:SAMPLE], True
            if any(self.around.text(text) != self.encoder.opening(text) for text in texts):
                self.around = None  # it looks into texts in a way that was not found out
                return
            self.words = PieceCounter.of(self.encoder.tokenizer, self.around.before, self.around.after, texts)

    def _quickly(self, prompt: Text) -> Count | None:
        content = single_user_text(prompt)
        if self.words is None or self.around is None or content is None or self.around.text(content) is None:
            return None
        count = self.words.count(content)
        return None if count is None else (count, 0)

    def _opening(self, prompt: Text) -> str:
        content = single_user_text(prompt)
        text = self.around.text(content) if self.around and content is not None else None
        return self.encoder.opening(prompt) if text is None else text

    def _demonstrated(self, row: Row) -> Count:
        sides = [row] if row.rejected is None else [row, replace(row, response=row.rejected)]
        made = [self.encoder.demonstration(0, side) for side in sides]
        if refused := next((side for side in made if isinstance(side, RefusedRow)), None):
            return refused.reason
        openings = [side.mask.index(1) for side in made if isinstance(side, Tokens)]
        answers = [len(side.ids) - side.mask.index(1) for side in made if isinstance(side, Tokens)]
        return max(openings), max(answers)


def _counted(encoder: Encoder, texts: Sequence[str]) -> list[int]:
    backend = encoder.tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    made = backend.encode_batch_fast(list(texts), add_special_tokens=not encoder.templated)
    return [len(encoding) for encoding in made]
