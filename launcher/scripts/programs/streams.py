"""What programs read whose output is computed here."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.scripts.words.files import known_text
from launcher.scripts.words.state import BashProcess, is_open


class UnknownOutput(Exception):
    """What the program writes is known only where it runs."""


def input_text(shell: BashProcess, files: Sequence[str] = ()) -> str:
    """What a program reads: files, or its standard input. Raises UnknownOutput."""
    if files:
        return "".join(_file_text(shell, file) for file in files)
    if shell.stdin.text is None:
        raise UnknownOutput
    text = shell.stdin.text[shell.stdin.position :]
    shell.stdin.position = len(shell.stdin.text)
    return text


def _file_text(shell: BashProcess, file: str) -> str:
    if file in ("-", "/dev/stdin"):
        return input_text(shell)
    text = known_text(shell, file)
    if text is None:
        raise UnknownOutput
    return text


def closed(*texts: str) -> None:
    """Raises UnknownOutput where a text has open parts."""
    if any(is_open(text) for text in texts):
        raise UnknownOutput
