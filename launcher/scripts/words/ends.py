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


def run_apart(shell: BashProcess, text: str, sink: TextSink) -> None:
    """Runs text as a substitution does: in this shell, which is a copy, with its output in `sink`."""
    shell.sinks, shell.wrappers = {1: sink, 2: None}, ()
    shell.options.discard("errexit")
    try:
        shell.status = shell.run_text(shell, text, shell.file, shell.line)
    except ExitScript as end:
        shell.status = end.status
    shell.status = ended(shell, shell.status)
