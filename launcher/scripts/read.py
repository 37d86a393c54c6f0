"""Reads a launch script that someone wrote, as bash would, and says which programs it starts. Nothing of it is run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launcher.scripts.statements import run_text
from launcher.scripts.words.ends import ended
from launcher.scripts.words.files import NotReadable, decoded
from launcher.scripts.words.state import (
    FILE_BYTES,
    PRIVATE,
    BashProcess,
    ExitScript,
    Launch,
    LeaveLoop,
    OpenPart,
    Reading,
    StopReading,
    UnreadPart,
    Wrapper,
    first_variables,
)

SBATCH = re.compile(r"^#SBATCH[ \t]+(.*?)[ \t]*$", re.MULTILINE)
HEAD = re.compile(r"(?:[ \t]*(?:#.*)?\n)*")
"""What stands before the first command, where Slurm looks for its options."""


@dataclass(frozen=True)
class ScriptReading:
    """What a script starts, and what only running it could show."""

    launches: tuple[Launch, ...] = ()
    """In the order in which the script starts them."""
    open: tuple[OpenPart, ...] = ()
    """What only running could tell."""
    refused: tuple[UnreadPart, ...] = ()
    """What could not be read."""
    other_programs: tuple[Launch, ...] = ()
    """Programs of Python that take no arguments of Hydra: preparing data, merging checkpoints."""
    written: Mapping[str, str | None] = field(default_factory=dict)
    """Files that the script would write, by path; None where the text is known only when it runs."""


def read_script(
    path: Path, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> ScriptReading:
    """Reads the script as `bash path arguments...` would run it, in a shell with that environment.

    Without `PWD` in `environment` the working folder is open. Never raises for what the script holds."""
    name = str(path)
    try:
        with path.open("rb") as file:
            text = decoded(file.read(FILE_BYTES + 1), name)
    except NotReadable as error:
        line, _, reason = str(error).rpartition(": ") if "; " not in str(error) else str(error).partition(": ")
        return ScriptReading(refused=(UnreadPart(line, reason),))
    except OSError as error:
        return ScriptReading(refused=(UnreadPart(name, f"cannot be read: {error.strerror}"),))
    if found := PRIVATE.search(text):
        line = f"{name}:{text.count(chr(10), 0, found.start()) + 1}"
        return ScriptReading(refused=(UnreadPart(line, "a character of the private use area of Unicode"),))
    reading = Reading(path.absolute().parent)
    shell = first_shell(reading, name, text, [_plain(one) for one in arguments], environment or {})
    try:
        try:
            status = shell.run_text(shell, text, name, 1)
        except ExitScript as end:
            status = end.status
        except LeaveLoop:
            status = 0
        ended(shell, status)
    except StopReading as error:
        reading.refused[UnreadPart(reading.stopped_at or shell.place, str(error))] = None
    except RecursionError:
        shell.report_unread("statements too deep within each other")
    written = {key: None if value is None else reading.visible(value) for key, value in reading.written.items()}
    return ScriptReading(
        tuple(reading.launches), tuple(reading.open.values()), tuple(reading.refused), tuple(reading.others), written
    )


def first_shell(
    reading: Reading, name: str, text: str, arguments: list[str], environment: Mapping[str, str]
) -> BashProcess:
    """The shell in which the script begins."""
    variables = first_variables({key: _plain(value) for key, value in environment.items()})
    shell = BashProcess(reading, run_text, name, name, arguments, [variables])
    folder = environment.get("PWD")
    if folder is None:
        shell.folder = reading.open_character("{PWD}")
    else:
        shell.folder = folder
    directives = SBATCH.findall(found[0] if (found := HEAD.match(text + chr(10))) else "")
    if directives:
        shell.on_slurm = True
        options = {}
        for directive in directives:
            for found in re.finditer(r"--?([A-Za-z][\w-]*)(?:[= ]([^\s#]+))?", directive):
                options[found[1]] = found[2] or ""
        shell.wrappers = (Wrapper("sbatch", options),)
    return shell


def _plain(text: str) -> str:
    """Without characters that stand for open parts."""
    return PRIVATE.sub("\ufffd", text.replace("\0", ""))
