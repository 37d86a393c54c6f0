"""Paths and files that a script names: what it wrote itself, what lies beside it, and what only its machine has."""

from __future__ import annotations

from pathlib import Path

from launcher.scripts.words.state import FILE_BYTES, FILES, BashProcess, StopReading, is_open

PARENTS = 2  # folders above the script whose files are read too

SETTINGS = (".env", ".sh")  # what `source` reads


class NotReadable(Exception):
    """A file that is not there or is no text."""


def normal_path(shell: BashProcess, path: str) -> str:
    """`path` from the working folder, without `.` and `..`; symbolic links are not followed."""
    whole = path if path.startswith("/") or is_open(path[:1]) else f"{shell.folder.rstrip('/')}/{path}"
    absolute = whole.startswith("/")
    parts: list[str] = []
    for part in whole.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            parts.append(part)
        elif parts and not is_open(parts[-1]):
            parts.pop()
        elif parts:
            above = shell.reading.visible(parts.pop()).strip("{}")
            parts.append(shell.open_value(f"{above}/..", "{" + above + "/..}"))
    return ("/" if absolute else "") + "/".join(parts)


def real_path(shell: BashProcess, path: str) -> Path | None:
    """The file of this machine that the script means, where it lies near the script; None where there is none."""
    root = shell.reading.root
    near = root.parents[PARENTS - 1] if len(root.parents) >= PARENTS else root
    near = near if len(near.parts) > 1 else root
    whole = shell.reading.visible(normal_path(shell, path))
    candidates = [root / path] if not path.startswith("/") else []
    if whole.startswith("{PWD}"):
        candidates.insert(0, Path.cwd() / whole.removeprefix("{PWD}").lstrip("/"))
    elif not is_open(normal_path(shell, path)):
        candidates.insert(0, Path(whole))
    for candidate in candidates:
        try:
            found = candidate.resolve()
            if found.is_relative_to(near) and found.is_file():
                return found
        except (OSError, ValueError, RuntimeError):
            continue
    return None


def decoded(content: bytes, name: str) -> str:
    """Text of a script. Raises NotReadable with `file:line: reason`."""
    if len(content) > FILE_BYTES:
        raise NotReadable(f"{name}:1: larger than {FILE_BYTES >> 20} MB")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise NotReadable(f"{name}:1: UTF-16; save it as UTF-8")
    if (place := content.find(b"\0")) >= 0:
        line = content.count(b"\n", 0, place) + 1
        raise NotReadable(f"{name}:{line}: a NUL byte; a text file was expected")
    if (place := content.find(b"\r\n")) >= 0:
        line = content.count(b"\n", 0, place) + 1
        raise NotReadable(f"{name}:{line}: line ends of Windows (CRLF), which bash takes for characters; use dos2unix")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise NotReadable(f"{name}:{line}: not UTF-8; save it as UTF-8") from error


def script_text(shell: BashProcess, path: str) -> tuple[str, str] | None:
    """Text and name of another script or file that this one reads; None where only its machine has it.

    Raises NotReadable, and StopReading after too many files."""
    if path == "/dev/stdin" and shell.stdin.text is not None:
        return shell.stdin.text[shell.stdin.position :], path
    written = shell.reading.written
    key = shell.reading.visible(normal_path(shell, path))
    if key in written:
        text = written[key]
        return None if text is None else (text, shell.reading.visible(path))
    found = real_path(shell, path)
    if found is None:
        return None
    shell.reading.files += 1
    if shell.reading.files > FILES:
        raise StopReading(f"reads more than {FILES} files")
    name = shell.reading.visible(path)
    try:
        with found.open("rb") as file:
            return decoded(file.read(FILE_BYTES + 1), name), name
    except OSError as error:
        raise NotReadable(f"{name}: {error.strerror}") from error


def known_text(shell: BashProcess, path: str) -> str | None:
    """What a file holds that the script wrote, or that has settings and lies near it; else None, as a file of this
    machine need not be the one of the machine where the script runs."""
    if shell.reading.visible(normal_path(shell, path)) not in shell.reading.written and not path.endswith(SETTINGS):
        return None
    try:
        found = script_text(shell, path)
    except NotReadable:
        return None
    return None if found is None else found[0]


def exists(shell: BashProcess, path: str) -> bool:
    """Whether the script wrote the file, or it lies near the script."""
    return (
        shell.reading.visible(normal_path(shell, path)) in shell.reading.written or real_path(shell, path) is not None
    )


def write_file(shell: BashProcess, path: str, text: str | None, *, append: bool) -> None:
    """Remembers what the script would write; nothing is written."""
    key = shell.reading.visible(normal_path(shell, path))
    written = shell.reading.written
    before = written.get(key, "") if append else ""
    known = text is not None and before is not None
    if known and len(before or "") + len(text or "") > FILE_BYTES:
        raise StopReading(f"{key}: larger than {FILE_BYTES >> 20} MB")
    if len(written) < 1000 or key in written:
        written[key] = f"{before}{text}" if known else None
