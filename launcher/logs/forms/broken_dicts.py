"""Dicts that stand on several lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher.core.events import Event
from launcher.logs.forms import dicts
from launcher.logs.forms.reading import Form

_VALIDATION = re.compile(r"(Initial|Final) validation metrics: ")
_DICT_LINES = 2_000  # most lines of a dict that pprint broke
_OPENS = re.compile(r"\s{0,20}\{\s{0,8}(?:['\"][^{}]{0,500})?")
_GOES_ON = re.compile(r"\s{0,40}['\"][^{}]{0,500}\}?\s{0,8}|\s{0,40}\}\s{0,8}")
_MOST_LINES = 500  # of a dict with an entry on each


class ValidationDicts(Form):
    """verl's metrics before the first step, or after the last, which pprint may break into several lines."""

    _lines: tuple[str, ...] = ()

    @property
    def open(self) -> bool:
        """Whether its end has not come yet."""
        return bool(self._lines)

    def claims(self, line: str) -> bool:
        return bool(self._lines) or ("validation metrics: {" in line and _VALIDATION.search(line) is not None)

    def take(self, line: str) -> Iterator[Event]:
        self._lines += (line,)
        return self.finish() if "}" in line or len(self._lines) > _DICT_LINES else iter(())

    def finish(self) -> Iterator[Event]:
        text, self._lines = _joined(self._lines), ()
        begun = _VALIDATION.search(text)
        node = dicts.parse(text[begun.end() : text.rfind("}") + 1]) if begun else None
        if begun and node and (metrics := dicts.numbers(node)):
            last = self.reading.last or 0
            # answers that wait for their step are those of a last validation, which older verl gave a step of its own
            step = 0 if begun[1] == "Initial" else last + 1 if self.reading.answers else last
            yield from self.reading.verl_step(step, metrics)


def _joined(lines: tuple[str, ...]) -> str:
    """The text that pprint broke into quoted pieces, one a line:

    ("Initial validation metrics: {'val-core/gsm8k/reward/mean@1': "
     '0.22}')
    """
    pieces = [line.strip().removeprefix("(").strip() for line in lines]
    pieces = [piece[:-1] if piece.endswith(("')", '")')) else piece for piece in pieces]
    return "".join(
        piece[1:-1] if len(piece) > 1 and piece[0] == piece[-1] and piece[0] in "'\"" else piece for piece in pieces
    )


class BrokenDicts(Form):
    """Puts the lines of a dict together that has an entry on each, as pprint and `json.dump(indent=4)` write it. One
    with a dict in it is none: most are settings."""

    _lines: tuple[str, ...] = ()

    def claims(self, line: str) -> bool:
        if not (self._lines and len(self._lines) < _MOST_LINES and _GOES_ON.fullmatch(line)):
            self._lines = ()
        return bool(self._lines) or ("{" in line and _OPENS.fullmatch(line) is not None)

    def take(self, line: str) -> Iterator[Event]:
        self._lines += (line,)
        self.rest = ""
        if "}" in line:
            self.rest, self._lines = " ".join(self._lines), ()
        return iter(())
