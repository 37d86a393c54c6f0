"""A mailbox in one SQLite file with full-text search (FTS5). Sessions open it read-only.

One mail, as a row of a file of mails:
    {"message_id": "m7", "from": "anna", "to": "pia", "date": "2026-03-02", "subject": "budget", "body": "..."}
Instead of these keys also id; sender; recipient, or a list; text or content.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

_KEYS = {
    "message_id": ("message_id", "id"), "sender": ("from", "sender"), "recipient": ("to", "recipient"),
    "date": ("date",), "subject": ("subject",), "body": ("body", "text", "content"),
}  # fmt: skip
_WORD = re.compile(r"\w+")
MOST_HITS = 5
"""Default number of mails that a search returns."""


@dataclass(frozen=True)
class Mail:
    message_id: str
    sender: str
    recipient: str
    date: str
    subject: str
    body: str

    @property
    def text(self) -> str:
        """The mail as text, with its header."""
        head = (("from", self.sender), ("to", self.recipient), ("date", self.date), ("subject", self.subject))
        return "\n".join([*(f"{name}: {value}" for name, value in head if value), self.body])

    @property
    def line(self) -> str:
        """The mail in a list of search results."""
        return " ".join(f"{self.message_id} {self.sender}: {self.subject}".split())


_COLUMNS = ", ".join(field.name for field in fields(Mail))


def mail_of(values: Mapping[str, Any]) -> Mail:
    """The mail in a row. Raises `ValueError` where it has no id."""
    texts = {}
    for name, keys in _KEYS.items():
        value = next((values[key] for key in keys if values.get(key) is not None), "")
        texts[name] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    if not texts["message_id"]:
        raise ValueError("a mail has no message_id")
    return Mail(**texts)


def write_mailbox(path: Path, mails: Iterable[Mail]) -> Path:
    """Write the file under a draft name and rename it, so that no reader sees a partial one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.part")
    draft.unlink(missing_ok=True)
    with closing(sqlite3.connect(draft)) as base, base:
        base.execute(f"create virtual table mails using fts5({_COLUMNS}, tokenize='porter unicode61')")
        base.execute("create table places (message_id text primary key, place integer) without rowid")
        for number, mail in enumerate(mails, start=1):
            if base.execute("insert or ignore into places values (?, ?)", (mail.message_id, number)).rowcount:
                base.execute(
                    f"insert into mails (rowid, {_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?)", (number, *astuple(mail))
                )
    draft.replace(path)
    return path


class Mailbox:
    """An open mailbox; it cannot be changed."""

    def __init__(self, path: Path) -> None:
        self._base = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True, check_same_thread=False)

    def close(self) -> None:
        self._base.close()

    def search(
        self, keywords: str, sender: str = "", after: str = "", before: str = "", most: int = MOST_HITS
    ) -> list[Mail]:
        """Mails that have all words of `keywords`, the most relevant first (BM25), then by id. `sender` is a word of
        who sent it, and dates are compared as texts. Only words are searched. Raises `ValueError` without one."""
        terms = " ".join(f'"{word}"' for word in _WORD.findall(keywords))
        if not terms:
            raise ValueError("keywords has no word; use one or more, such as budget")
        query = terms + "".join(f' sender:"{word}"' for word in _WORD.findall(sender))
        rows = self._base.execute(
            f"select {_COLUMNS} from mails"
            " where mails match ? and (? = '' or date >= ?) and (? = '' or date < ?)"
            " order by round(rank, 9), message_id limit ?",
            (query, after, after, before, before, most),
        )
        return [Mail(*row) for row in rows]

    def read(self, message_id: str) -> Mail | None:
        wanted = "select place from places where message_id = ?"
        row = self._base.execute(f"select {_COLUMNS} from mails where rowid = ({wanted})", (message_id,)).fetchone()
        return Mail(*row) if row else None
