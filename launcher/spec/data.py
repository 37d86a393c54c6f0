"""What a dataset is: rows of prompts and answers, each with the place it was read from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from launcher.core.problems import Problem
from launcher.core.settings import AtLeastOne, settings
from launcher.spec.algorithm import Kind
from launcher.spec.reward import Answer

Split = Literal["train", "val"]
ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Message:
    role: str
    content: str


Text = str | tuple[Message, ...]


@dataclass(frozen=True)
class Row:
    """One row that can be trained on or answered.

    `prompt` is text or a conversation. Its answer is `response`; where that is None and the row is to be
    imitated, the conversation's assistant turns are the answers. A row with `rejected` is a pair, and `response`
    the answer that was chosen over it.
    """

    where: str  # file:line
    prompt: Text
    response: str | None = None
    rejected: str | None = None
    ground_truth: str | None = None
    data_source: str = "unknown"
    ability: str = ""
    extra_info: Mapping[str, Any] = field(default_factory=dict)


def make_answer(row: Row, text: str = "") -> Answer:
    """`text` as an answer to the row's prompt, with what a reward may know of it."""
    prompt = row.prompt if isinstance(row.prompt, str) else tuple((turn.role, turn.content) for turn in row.prompt)
    return Answer(text, row.ground_truth, row.data_source, row.extra_info, prompt)


def needs_rollout(row: Row, split: Split, kind: Kind) -> bool:
    """Whether the policy answers its prompt and the reward scores that: held-out rows only where the truth is known."""
    if split == "val":
        return row.ground_truth is not None
    return kind in ("prompts", "mixed") and row.rejected is None


@dataclass(frozen=True)
class RefusedRow:
    """A row that cannot be used: where it stands, why, and the whole of it."""

    where: str
    reason: str
    raw: str  # bytes that are no UTF-8 stand as surrogates, so that nothing is lost
    wanted: bool = False  # a setting asks for it to be left out, so it is no error


@dataclass(frozen=True)
class DataProgress:
    """How far rows are with being fetched and prepared."""

    doing: str
    done_bytes: int
    bytes: int
    rows: int
    """Written so far; 0 while files are fetched."""
    elapsed_s: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.elapsed_s if self.elapsed_s > 0 else 0.0


OnDataProgress = Callable[[DataProgress], None]


@settings
class Dataset(ABC):
    """Subclass it, decorate with @settings, and name the class in conf/data/<name>.yaml."""

    train_batch_size: AtLeastOne = 256
    """Prompts (or demonstrations) of one step, over all processes."""
    val_batch_size: AtLeastOne = 256
    """Held-out prompts answered at a time by each process; it changes memory and speed only."""
    max_prompt_length: AtLeastOne = 512
    """Tokens; what becomes of a longer prompt, `truncation` says."""
    max_response_length: AtLeastOne = 1024
    """Tokens; a longer sampled answer is cut, and what becomes of a longer demonstration, `truncation` says."""
    truncation: Literal["error", "filter", "left", "right"] = "error"
    """Of rows longer than that: `error` takes them for bad rows, `filter` leaves them out, `left` and `right` cut the
    prompt on that side, which may cut into the chat template; a demonstration loses its end."""
    chat_template: Literal["auto", "never"] = "auto"
    """`auto` writes prompts with the tokenizer's chat template where it has one; a text is then the user's turn."""
    shuffle: bool = True
    """Draw a new order for every epoch, from the seed."""
    on_bad_row: Literal["error", "skip"] = "error"
    """`error` starts nothing while a row is bad; `skip` sets bad rows aside in a file and goes on."""

    @abstractmethod
    def read(self, split: Split, kind: Kind) -> Iterator[Row | RefusedRow]:
        """Every row of the split once, as prompts or as demonstrations, good or refused, in a fixed order."""

    @property
    def held_out(self) -> int | None:
        """Held-out rows, where the settings tell how many; None where only reading them does."""
        return None

    def problems(self) -> list[Problem]:
        """What can be seen to be wrong without reading rows."""
        return []

    def with_absolute_paths(self) -> Self:
        """The same data, found from any working folder."""
        return self

    def local(self, kind: Kind) -> Dataset | None:
        """The same rows as they can be read now; None where they have to be `prepared` first. Asks no network."""
        return self

    def raw(self, watch: OnDataProgress) -> Dataset:
        """The same rows where they come from, bad ones too. Raises `Problems`."""
        return self

    def prepared(self, kind: Kind, watch: OnDataProgress) -> Dataset:
        """The same rows, lying on this machine and ready to be read. Raises `Problems`."""
        return self

    @abstractmethod
    def fingerprint(self) -> str:
        """sha256 over what the rows come from: equal text, equal rows."""
