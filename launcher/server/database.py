"""The server's database: SQLite in WAL mode in the run root, or PostgreSQL.

Jobs are only indexed here: `--reindex` rebuilds them from their folders.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import JSON, String, Text, create_engine, event, make_url
from sqlalchemy.engine import Engine
from sqlalchemy.exc import ArgumentError, DatabaseError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from launcher.core.problems import Problem, Problems, error_message

NAME = ".rlrun-serve.sqlite"
"""The database file in the run root, used where no address is given."""


class Base(DeclarativeBase):
    """All tables."""


class JobRow(Base):
    """A job, as its `job.json` has it."""

    __tablename__ = "jobs"
    uuid: Mapped[str] = mapped_column(String(128), primary_key=True)
    place: Mapped[str] = mapped_column(Text, default="")
    """Its folder, relative to the run root or absolute; empty while it has none."""
    record: Mapped[dict[str, Any]] = mapped_column(JSON)


class Database:
    """Sessions of one database; its tables are made where they are missing. Methods may be called from any thread."""

    def __init__(self, address: str, root: Path) -> None:
        self.engine = _engine(address or f"sqlite:///{root / NAME}")
        try:
            Base.metadata.create_all(self.engine)
        except DatabaseError as error:
            where, fix = ("--db", "use another address") if address else (str(root), "make it writable, or use --db")
            got = f"the database cannot be opened: {error_message(error.orig or error)}"
            raise Problems(Problem(where, got, fix, "not-reachable")) from error
        self.session = sessionmaker(self.engine, expire_on_commit=False).begin
        """Gives a transaction, committed at the end of a block and rolled back by an exception."""

    def close(self) -> None:
        self.engine.dispose()


def _engine(address: str) -> Engine:
    """Raises `Problems` for an invalid address, or one whose driver is not installed."""
    try:
        url = make_url(address)
        engine = create_engine(url, pool_pre_ping=True)
    except (ArgumentError, ImportError) as error:
        got, fix = error_message(error), "use sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME"
        raise Problems(Problem("--db", got, fix)) from error
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: object) -> None:
    """WAL, so that readers do not wait for a writer; a writer waits up to 10 s for another."""
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=10000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
