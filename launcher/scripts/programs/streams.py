"""What programs read whose output is computed here."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.scripts.words.files import NotReadable, normal_path, script_text
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
    key = shell.reading.visible(normal_path(shell, file))
    if shell.reading.written.get(key) is None:
        raise UnknownOutput  # a file of this machine need not be the one of the machine where the script runs
    try:
        found = script_text(shell, file)
    except NotReadable as error:
        raise UnknownOutput from error
    if found is None:
        raise UnknownOutput
    return found[0]


def closed(*texts: str) -> None:
    """Raises UnknownOutput where a text has open parts."""
    if any(is_open(text) for text in texts):
        raise UnknownOutput
