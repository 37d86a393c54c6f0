"""Whether a run learned, as its last event says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VerdictKind = Literal["learned", "not learned", "harmed", "cannot tell"]


@dataclass(frozen=True)
class RunVerdict:
    """Whether a run learned, judged by its held-out rows."""

    kind: VerdictKind
    text: str
    """The held-out score or loss at the start and the end, or why nothing can be said."""
    fix: str = ""
    """The argument that helps; empty where none is known."""

    @property
    def line(self) -> str:
        fix_text = f"; use {self.fix}" if self.fix and self.fix not in self.text else ""
        return f"{self.kind}: {self.text}{fix_text}"
