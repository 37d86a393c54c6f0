"""What runs when a shell ends."""

from __future__ import annotations

from launcher.scripts.words.state import BashProcess, ExitScript, TextSink


def ended(shell: BashProcess, status: int) -> int:
    """Runs what `trap ... EXIT` gave, and returns the status of the shell."""
    text, shell.exit_trap = shell.exit_trap, ""
    if not text:
        return status
    shell.status, shell.loops = status, 0
    try:
        shell.run_text(shell, text, shell.file, shell.line)
    except ExitScript as end:
        return end.status
    return status


def returned(shell: BashProcess, status: int) -> int:
    """Runs what `trap ... RETURN` gave, at the end of a function or of a file, whose status it returns."""
    if shell.return_trap:
        shell.status, assumed = status, shell.assumed
        shell.run_text(shell, shell.return_trap, shell.file, shell.line)
        shell.status, shell.assumed = status, assumed
    return status


def run_apart(shell: BashProcess, text: str, sink: TextSink) -> None:
    """Runs text as a substitution does: in this shell, which is a copy, with its output in `sink`."""
    shell.sinks, shell.wrappers = {1: sink, 2: None}, ()
    shell.options.discard("errexit")
    try:
        shell.status = shell.run_text(shell, text, shell.file, shell.line)
    except ExitScript as end:
        shell.status = end.status
    shell.status = ended(shell, shell.status)
