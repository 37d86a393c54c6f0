"""Token lengths of many prompts, faster than one by one: equal numbers, the template written once, batches tokenised.

Most of a prompt's time goes into the chat template. For a single user's turn a template writes the same text before and
after the content, whatever the content is, unless it looks into the content. `Around` finds out whether and for what
this one looks; rows that could be told apart are written by the template itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jinja2 import TemplateSyntaxError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from launcher.engines.torch.tokens import Encoder, Tokens, alone
from launcher.engines.torch.words import Words
from launcher.spec.algorithm import Kind
from launcher.spec.data import Refused, Row, Text

BATCH = 1024
SAMPLE = 64  # texts on which a shortcut must agree with the tokenizer
_STRIPS = ("strip", "lstrip", "rstrip", "trim")
_PROBES = (" \n(7z)\t ", "\n x\u00e9 9 \r\n")  # with blanks at their ends: a template that trims them is found out


@dataclass(frozen=True)
class Around:
    """What a chat template writes around a user's turn, and the texts that it looks for in one."""

    before: str
    after: str
    looked_for: frozenset[str]

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Those that may stand anywhere in a turn; a bare word is compared with roles, as a whole."""
        return tuple(text for text in self.looked_for if not text.isidentifier())

    @classmethod
    def of(cls, encoder: Encoder) -> Around | None:
        """None where the template changes contents, or cannot be read."""
        if not encoder.templated:
            return None
        looked_for = _looked_for(str(encoder.tokenizer.chat_template))
        found = set()
        for probe in _PROBES:
            parts = encoder.opening(probe).split(probe)
            if len(parts) != 2:
                return None
            found.add(tuple(parts))
        if looked_for is None or len(found) > 1:
            return None
        before, after = found.pop()
        return cls(before, after, looked_for)

    def text(self, content: str) -> str | None:
        """The turn as the template writes it; None where it might write this one otherwise."""
        if content in self.looked_for or any(text in content for text in self.parts):
            return None
        return f"{self.before}{content}{self.after}"


def _looked_for(template: str) -> frozenset[str] | None:
    """Texts that the template compares something with, or cuts it at."""
    try:
        environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
        tree = environment.parse(re.sub(r"{%-?\s*(end)?generation\s*-?%}", "", template))  # marks of training masks
    except TemplateSyntaxError:
        return None
    found: set[str] = set()
    for node in tree.find_all((nodes.Call, nodes.Filter, nodes.Test, nodes.Compare)):
        found |= set(_constants(node))
    return frozenset(found)


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
        self.encoder, self.around = encoder, Around.of(encoder)
        self.words: Words | None = None
        self.asked = False
        """Whether it was found out if words can be counted."""

    def of(self, rows: Sequence[Row], kind: Kind) -> list[tuple[int, int]]:
        """Tokens of each row's prompt (-1 where it cannot be written) and of its longer answer (0 without one)."""
        if kind in ("answers", "pairs"):
            return [self._demonstrated(row) for row in rows]
        found = list[tuple[int, int]]()
        for start in range(0, len(rows), BATCH):
            found += [(count, 0) for count in self._counts([row.prompt for row in rows[start : start + BATCH]])]
        return found

    def _counts(self, prompts: Sequence[Text]) -> list[int]:
        self._learn(prompts)
        counts = [self._quickly(prompt) for prompt in prompts]
        left = [place for place, count in enumerate(counts) if count is None]
        texts = {place: text for place in left if (text := self._opening(prompts[place])) is not None}
        made = dict(zip(texts, _counted(self.encoder, list(texts.values())), strict=True))
        return [made.get(place, -1) if count is None else count for place, count in enumerate(counts)]

    def _learn(self, prompts: Sequence[Text]) -> None:
        """The first prompts tell whether words can be counted."""
        if self.around and not self.asked:
            texts = [text for prompt in prompts if (text := alone(prompt)) is not None and self.around.text(text)]
            self.words = Words.of(self.encoder.tokenizer, self.around.before, self.around.after, texts[:SAMPLE])
            self.asked = True

    def _quickly(self, prompt: Text) -> int | None:
        content = alone(prompt)
        if self.words is None or self.around is None or content is None or self.around.text(content) is None:
            return None
        return self.words.count(content)

    def _opening(self, prompt: Text) -> str | None:
        content = alone(prompt)
        if content is None:
            return self.encoder.opening(prompt) if self.encoder.templated else None
        text = self.around.text(content) if self.around else None
        return self.encoder.opening(prompt) if text is None else text

    def _demonstrated(self, row: Row) -> tuple[int, int]:
        sides = [row] if row.rejected is None else [row, replace(row, response=row.rejected)]
        made = [self.encoder.demonstration(0, side) for side in sides]
        if any(isinstance(side, Refused) for side in made):
            return -1, 0
        openings = [side.mask.index(1) for side in made if isinstance(side, Tokens)]
        answers = [len(side.ids) - side.mask.index(1) for side in made if isinstance(side, Tokens)]
        return max(openings), max(answers)


def _counted(encoder: Encoder, texts: Sequence[str]) -> list[int]:
    backend = encoder.tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    made = backend.encode_batch_fast(list(texts), add_special_tokens=not encoder.templated)
    return [len(encoding) for encoding in made]
