"""What a dataset is: rows of prompts and answers, each with the place it was read from."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field

from launcher.core.settings import AtLeastOne, ReadOnlyWith, Share, settings
from launcher.spec.algorithm import Kind
from launcher.spec.part import Part
from launcher.spec.reward import Answer

Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = get_args(Split)
NO_SOURCE = "unknown"
"""`data_source` of a row that names none; its file may set one."""
ROLES = ("system", "user", "assistant", "tool")
_TEXTS = (".jsonl", ".json", ".ndjson", ".csv", ".tsv")
ENDINGS = (*_TEXTS, *(f"{ending}.gz" for ending in _TEXTS), ".parquet")
"""Endings of files of rows, in lower case."""
IMITATED = ReadOnlyWith(
    "run.algorithm.data", "answers", fix="algorithm=sft", why="the algorithm does not learn from demonstrations"
)


RESERVED = frozenset({
    "conversation", "messages", "tokenize", "add_generation_prompt", "continue_final_message", "chat_template",
    "padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
    "tokenizer_kwargs",
})  # fmt: skip
"""Arguments of apply_chat_template that control its output, and are not variables of a template."""


def template_args_of(args: dict[str, Any]) -> dict[str, Any]:
    """Arguments for a chat template. Raises `ValueError` for one that its caller sets (RESERVED)."""
    if reserved := sorted(RESERVED & args.keys()):
        raise ValueError(f"{reserved[0]} is decided where the template is used; leave it out")
    return args


@dataclass(frozen=True)
class Message:
    """A turn. `extra` holds its other keys for the chat template, as they are in the row: tool_calls, name,
    reasoning_content; also a content that is null."""

    role: str
    content: str
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def node(self) -> dict[str, Any]:
        """The turn as its row has it, and as a chat template reads it."""
        return {"role": self.role, "content": self.content, **self.extra}

    @property
    def says_nothing(self) -> bool:
        return not (self.content.strip() or self.extra.get("tool_calls"))


Text = str | tuple[Message, ...]
FEW_ROWS, MOST_HELD_OUT, LOOKED_AT = 20, 256, 20_000
"""`val_share` holds out no rows of fewer than FEW_ROWS, at most MOST_HELD_OUT, and those from the first LOOKED_AT."""


@dataclass(frozen=True)
class Row:
    """One row that can be trained on or answered.

    `prompt` is text or a conversation. Its answer is `response`; where that is None, a demonstration's answers are the
    assistant turns of the conversation. A row with `rejected` is a pair, and `response` the answer that was chosen
    over it.
    """

    where: str  # file:line
    prompt: Text
    response: str | None = None
    rejected: str | None = None
    ground_truth: str | None = None
    """The text that an answer is compared with; for other types their JSON, and `typed_truth` is the value."""
    data_source: str = NO_SOURCE
    ability: str = ""
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    style: str = ""
    template_args: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the chat template beside the turns, such as tools."""
    response_extra: Mapping[str, Any] = field(default_factory=dict)
    """`Message.extra` of the response."""
    rejected_extra: Mapping[str, Any] = field(default_factory=dict)
    typed_truth: Any = None
    unread: tuple[str, ...] = field(default=(), compare=False)
    """Keys of the row and of its turns that were not used."""


def prompt_turns(row: Row) -> list[tuple[str, str]]:
    """Roles and contents of the prompt; a text is the user's."""
    return [("user", row.prompt)] if isinstance(row.prompt, str) else [(turn.role, turn.content) for turn in row.prompt]


def asked(row: Row) -> tuple[tuple[str, str], ...]:
    """Roles and contents of the question, without an answer as the last turn: equal for rows of one question."""
    turns = prompt_turns(row)
    answered = len(turns) > 1 and turns[-1][0] == "assistant"
    return tuple((role, text.strip()) for role, text in turns[: len(turns) - answered])


def prompt_node(prompt: Text) -> Any:
    """The prompt in JSON: a text, or turns with role and content."""
    return prompt if isinstance(prompt, str) else [turn.node for turn in prompt]


def make_answer(row: Row, text: str = "") -> Answer:
    """`text` as an answer to the row's prompt, with the fields that a reward may use."""
    prompt = row.prompt if isinstance(row.prompt, str) else tuple((turn.role, turn.content) for turn in row.prompt)
    return Answer(
        text, row.ground_truth, row.data_source, row.extra_info, prompt, row.style, row.where, row.typed_truth
    )


def needs_rollout(row: Row, split: Split, kind: Kind) -> bool:
    """Whether the policy answers the prompt and the reward scores it: held-out rows only where they have a ground
    truth."""
    if split == "val":
        return row.ground_truth is not None
    return kind in ("prompts", "mixed") and row.rejected is None


def is_measured(row: Row, kind: Kind) -> bool:
    """Whether validation scores the row, or takes its loss."""
    return kind == "answers" or row.rejected is not None or needs_rollout(row, "val", kind)


@dataclass(frozen=True)
class RefusedRow:
    """A row that cannot be used: its place, the reason, and its raw text."""

    where: str
    reason: str
    raw: str  # invalid UTF-8 is kept as surrogates, so that nothing is lost
    wanted: bool = False  # a setting leaves it out on purpose, so it is not an error
    ends_file: bool = False  # the rest of the file is not read: an unknown number of rows


@dataclass(frozen=True)
class DataProgress:
    """Progress of fetching and preparing rows."""

    doing: str
    done_bytes: int
    bytes: int
    rows: int
    """Rows written so far; 0 while files are fetched."""
    elapsed_s: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.elapsed_s if self.elapsed_s > 0 else 0.0


OnDataProgress = Callable[[DataProgress], None]


@settings
class Dataset(Part, ABC):
    """Subclass it, decorate with @settings, and name the class in conf/data/<name>.yaml."""

    train_batch_size: AtLeastOne = 256
    """Prompts (or demonstrations) of one step, over all processes. Where it is not given, less if an epoch would have
    fewer than 8 steps."""
    val_batch_size: AtLeastOne = 256
    """Held-out prompts answered at a time by each process; it changes memory and speed only. Where it is
    not given, fewer if memory is too small."""
    max_prompt_length: AtLeastOne = 512
    """Tokens of a prompt; `truncation` says how longer ones are handled. Where it is not given, fewer for a model that
    has too few positions."""
    max_response_length: AtLeastOne = 1024
    """Tokens of an answer: sampled answers end there; `truncation` says how longer demonstrations are handled. Where
    it is not given, fewer for a model that has too few positions."""
    max_length: Annotated[int, Field(ge=2)] | None = None
    """Tokens of prompt and answer together, where answers are learned: given alone, each may take all of them. Where
    answers are sampled it only sets those of the two lengths that are not given."""
    truncation: Literal["error", "filter", "left", "right"] = "error"
    """Rows that are too long: `error` counts them as bad rows, `filter` drops them, `left` and `right` cut the prompt
    on that side, which may cut into the chat template; a demonstration is cut at its end."""
    chat_template: Literal["auto", "never"] = "auto"
    """`auto` formats prompts with the tokenizer's chat template if it has one; a plain text then becomes the user's
    turn."""
    template_args: Annotated[
        dict[str, Any],
        AfterValidator(template_args_of),
        ReadOnlyWith("chat_template", "auto", fix="data.chat_template=auto"),
    ] = field(default_factory=dict)
    """Arguments of the chat template, wherever it writes: `data.template_args={enable_thinking: false}`. Those of a row
    (`chat_template_kwargs`) come before them."""
    loss_on: Annotated[Literal["all", "last"], IMITATED] = "all"
    """Of a conversation: learn all assistant turns, or the last alone."""
    val_share: Share = 0.0
    """Share of the training rows that are held out where the data has no held-out rows of its own; at most 256 rows, of
    the first 20,000. Which ones depends on their prompts alone, and rows of one prompt stay together. Where it is not
    given, 0.1; of fewer than 20 rows none are held out, and 0 trains on all."""
    shuffle: bool = True
    """Draw a new order for every epoch, from the seed."""
    on_bad_row: Literal["error", "skip"] = "error"
    """`error` refuses to start while there are bad rows; `skip` writes them to a file and trains on the others."""

    @abstractmethod
    def read(self, split: Split, kind: Kind) -> Iterator[Row | RefusedRow]:
        """Yield every row of the split once, good or refused, in a fixed order, as `kind` uses it."""

    def rows(self, split: Split, kind: Kind) -> Iterator[Row | RefusedRow]:
        """As `read`, but with `val_share` of the training rows held out where there are no held-out rows."""
        if not self.val_share or next(iter(self.read("val", kind)), None):
            yield from self.read(split, kind)
            return
        held_out = self._held_out_prompts(kind)
        for row in self.read("train", kind):
            if isinstance(row, RefusedRow):
                if split == "train":
                    yield row
            elif (asked(row) in held_out) == (split == "val"):
                yield row

    def _held_out_prompts(self, kind: Kind) -> set[tuple[tuple[str, str], ...]]:
        """Prompts of about `val_share` of the rows: those with the smallest hashes, whatever the order of rows."""
        first = [row for row in islice(self.read("train", kind), LOOKED_AT) if isinstance(row, Row)]
        counts = Counter(asked(row) for row in first if is_measured(row, kind) and len(first) >= FEW_ROWS)
        remaining, held_out = min(round(self.val_share * len(first)), MOST_HELD_OUT), set[tuple[tuple[str, str], ...]]()
        for prompt in sorted(counts, key=lambda turns: blake2b(json.dumps(turns).encode()).digest()):
            if counts[prompt] <= remaining:
                held_out.add(prompt)
                remaining -= counts[prompt]
        return held_out if len(held_out) < len(counts) else set()

    @property
    def held_out(self) -> int | None:
        """Number of held-out rows, where the settings determine it; None where only reading them does."""
        return None

    def local(self) -> Dataset | None:
        """The same rows as they can be read now; None where they have to be `fetched` first. Makes no network
        request."""
        return self

    def fetched(self, watch: OnDataProgress) -> Dataset:
        """The same rows on this machine. Raises `Problems`."""
        return self

    @abstractmethod
    def fingerprint(self) -> str:
        """sha256 over the source of the rows: equal fingerprints mean equal rows."""
