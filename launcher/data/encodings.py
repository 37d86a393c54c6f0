"""Files that are not UTF-8 text: what they are, and the command that converts them."""

from __future__ import annotations

import codecs
import shlex

from launcher.core.files import open_file

_BOMS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
         codecs.BOM_UTF16_BE: "UTF-16"}  # fmt: skip
_SIGNATURES = (
    (b"PK\x03\x04", "a ZIP archive or a workbook of Excel", "save its rows as CSV"),
    (b"\xd0\xcf\x11\xe0", "a workbook of Excel", "save its rows as CSV"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it with zstd -d"),
    (b"\xfd7zXZ", "compressed by xz", "unpack it with xz -d"),
    (b"BZh", "compressed by bzip2", "unpack it with bzip2 -d"),
    (b"version https://git-lfs", "a pointer of Git LFS", "run git lfs pull in its repository"),
    (b"<!doctype html", "a web page", "download the file itself, not the page that shows it"),
    (b"<html", "a web page", "download the file itself, not the page that shows it"),
)
"""First bytes of files that are not row files, what they are, and what to do."""


def other_content(name: str) -> tuple[str, str] | None:
    """What a file is, and what to do, if its first bytes show that it is not UTF-8 text. Raises `OSError`."""
    with open_file(name) as file:
        head = file.read(64)
    for start, what, fix in _SIGNATURES:
        if head.startswith(start) or head.lower().startswith(start):
            return what, fix
    if not (encoding := next((name for mark, name in _BOMS.items() if head.startswith(mark)), "")):
        return None
    stem, dot, ending = name.rpartition(".")
    target = f"{stem}.utf8{dot}{ending}" if dot else f"{name}.utf8"
    command = f"iconv -f {encoding} -t UTF-8 {shlex.quote(name)} > {shlex.quote(target)}"
    return encoding, f"convert it to UTF-8: {command}"
