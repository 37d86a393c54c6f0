"""What a run came to, as its last event says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VerdictKind = Literal["learned", "not learned", "harmed", "cannot tell"]


@dataclass(frozen=True)
class RunVerdict:
    """Whether a run learned, by its held-out rows."""

    kind: VerdictKind
    text: str
    """From where to where, or why not, with its numbers."""
    fix: str = ""
    """The argument that helps."""

    @property
    def line(self) -> str:
        more = f"; use {self.fix}" if self.fix and self.fix not in self.text else ""
        return f"{self.kind}: {self.text}{more}"
