"""Patterns of file names: which files match is known only where the script runs."""

from __future__ import annotations

import re

from launcher.scripts.words.fields import FieldList
from launcher.scripts.words.lexer import UnreadableText
from launcher.scripts.words.state import BashProcess

PATTERN = re.compile(r"[*?]|\[[^\]/]+\]")
SETTING = re.compile(r"[^/*?\[]*=")
"""What `key=[1,2]` begins with: no file has such a name."""
NOTE = "which files match is known only where the script runs"


def has_pattern(text: str) -> bool:
    """Whether it may stand for names of files."""
    return PATTERN.search(text) is not None


def matching_files(shell: BashProcess, found: FieldList) -> list[str]:
    """The fields, with an open list for each pattern of file names.

    Raises UnreadableText under `shopt -s failglob` for a pattern that no file matches."""
    if "noglob" in shell.options:
        return found.fields
    fields = found.fields[: found.pattern_from]
    for field in found.fields[found.pattern_from :]:
        if not has_pattern(field):
            fields.append(field)
        elif not SETTING.match(field):
            text = shell.reading.visible(field)
            fields.append(shell.reading.list_character(shell.open_value(text, "{" + text + "}", NOTE)))
        elif "failglob" in shell.options:
            raise UnreadableText(f"shopt -s failglob: no file matches {shell.reading.visible(field)[:60]}")
        elif "nullglob" not in shell.options:
            fields.append(field)
    return fields
