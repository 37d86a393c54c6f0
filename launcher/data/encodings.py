"""Files that are not UTF-8, or no text of rows: what they are, and the command that helps."""

from __future__ import annotations

import codecs
import re
import shlex
from collections.abc import Iterable

from launcher.core.files import open_file

_BOMS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
         codecs.BOM_UTF16_BE: "UTF-16"}  # fmt: skip
_HIGH = re.compile(rb"[\x80-\xff]+")
_OTHERS = (
    (b"PK\x03\x04", "a ZIP archive or a workbook of Excel", "save its rows as CSV"),
    (b"\xd0\xcf\x11\xe0", "a workbook of Excel", "save its rows as CSV"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it with zstd -d"),
    (b"\xfd7zXZ", "compressed by xz", "unpack it with xz -d"),
    (b"BZh", "compressed by bzip2", "unpack it with bzip2 -d"),
    (b"version https://git-lfs", "a pointer of Git LFS", "run git lfs pull in its repository"),
    (b"<!doctype html", "a web page", "download the file itself, not the page that shows it"),
    (b"<html", "a web page", "download the file itself, not the page that shows it"),
)
"""First bytes of what is no text of rows, what it is, and what to do."""


def other_content(name: str) -> tuple[str, str] | None:
    """What a file is that is no text in UTF-8, as its first bytes tell, and what to do. Raises `OSError`."""
    with open_file(name) as file:
        head = file.read(64)
    for start, what, fix in _OTHERS:
        if head.startswith(start) or head.lower().startswith(start):
            return what, fix
    encoding = next((name for mark, name in _BOMS.items() if head.startswith(mark)), "")
    return (encoding, to_utf8(name, encoding)) if encoding else None


def probable_encoding(lines: Iterable[bytes]) -> str:
    """Of lines that are not UTF-8, where single letters among those of ASCII show a language of Western Europe; empty
    otherwise."""
    high = _HIGH.findall(b"\n".join(lines))
    return "WINDOWS-1252" if high and len(b"".join(high)) < 3 * len(high) else ""


def to_utf8(name: str, encoding: str) -> str:
    """The command that converts the file."""
    stem, dot, ending = name.rpartition(".")
    new = f"{stem}.utf8{dot}{ending}" if dot else f"{name}.utf8"
    return f"convert it to UTF-8: iconv -f {encoding} -t UTF-8 {shlex.quote(name)} > {shlex.quote(new)}"
