"""Questions about generated mails, with the mailbox that answers them; mailboxes from files or hub datasets.

One mail, and one of the questions that it answers (`data=email_search`):
    from: anna  date: 2026-03-05  subject: budget  "budget is on friday in rome at 9"
    prompt "which day is the budget meeting with anna"  ground_truth "friday"
    extra_info {"message_ids": ["m17"], "mailbox": "generated:360:7"}
A third of the mails are notes on the same subject by the same person, which answer no question. A demonstration is a
conversation that finds the mail, reads it, and answers the question; with `noise` each of its turns may be a mistake:
too few keywords, another mail, or "I don't know".
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from launcher.core.problems import Problem, Problems
from launcher.core.settings import AtLeastOne, Count, Share, settings
from launcher.data.files import expand
from launcher.data.hub import Hub
from launcher.data.mailbox import Mail, Mailbox, mail_of, write_mailbox
from launcher.data.reader import read_rows
from launcher.data.rows import store
from launcher.hubs.repo import is_id
from launcher.spec.algorithm import Kind
from launcher.spec.data import IMITATED, Dataset, Message, RefusedRow, Row, Split

GENERATED = "generated"
NO_IDEA = "I don't know"


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE = words("anna bob carl dora emil fay gus hana ivan jane kurt lena milo nina olaf pia")
FAMILIES = words("berg cole dahl eng falk gray holm iver jung kahn lund moss nash orr penn reed")
TOPICS = words("budget travel server lunch garden printer salary web office holiday invoice harbor museum tax rent lab")
KINDS = words("new old first second yearly weekly short long public private eastern western early late open final")
VALUES = {
    "day": words("monday tuesday wednesday thursday friday saturday sunday"),
    "city": words("rome paris oslo lima cairo delhi tokyo quito"),
    "hour": words("8 9 10 11 12 13 14 15 16 17 18"),
}
"""Kinds of facts that a question asks for, with their possible answers."""
NOTES = 3  # one mail of this many is a note without facts


def named(words: tuple[str, ...], more: tuple[str, ...], number: int) -> tuple[str, str]:
    """A unique name for `number`: a word, and a suffix from its second use on: nothing, `berg`, ..., `berg 2`."""
    round_, index = divmod(number, len(words))
    repeat, kind = divmod(round_ - 1, len(more))
    return words[index], f"{more[kind]} {repeat + 1 if repeat else ''}".strip() if round_ else ""


def generated(n_mails: int, seed: int) -> list[tuple[Mail, Mapping[str, str]]]:
    """Mails ordered by id, each with its fact of every kind in `VALUES`; notes have none."""
    draw = random.Random(f"mails {seed}")
    notes = n_mails // NOTES
    n_names = max(len(PEOPLE), math.isqrt(n_mails - notes - 1) + 1)  # enough names for a distinct pair per mail
    pairs = draw.sample(range(n_names * n_names), n_mails - notes)
    numbers = draw.sample(range(n_mails), n_mails)
    mails = []
    for index, pair in enumerate([*pairs, *draw.sample(pairs, notes)]):
        person = " ".join(named(PEOPLE, FAMILIES, pair % n_names)).strip()
        topic = " ".join(named(TOPICS, KINDS, pair // n_names)[::-1]).strip()
        facts = {kind: draw.choice(values) for kind, values in VALUES.items()} if index < len(pairs) else {}
        body = (
            f"{topic} is on {facts['day']} in {facts['city']} at {facts['hour']}"
            if facts
            else f"thanks for the {topic} note"
        )
        date = f"2026-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}"
        subject = topic if facts else f"re {topic}"
        mails.append((Mail(f"m{numbers[index]}", person, "", date, subject, body), facts))
    return sorted(mails, key=lambda entry: int(entry[0].message_id[1:]))


def mails_in(files: Iterable[str]) -> Iterator[Mail]:
    """The mails in row files, such as parquet or JSON lines. Raises `Problems` for a row that is no mail."""
    for file in files:
        for row in read_rows(file):
            try:
                if isinstance(row, RefusedRow):
                    raise ValueError(row.reason)
                yield mail_of(row.values)
            except ValueError as error:
                fix = "use rows with message_id, from, to, date, subject and body"
                raise Problems(Problem(row.where, str(error), fix, "bad-file")) from None


@cache
def mailbox_of(source: str) -> Path:
    """The file of a mailbox: `source` is such a file, `generated:MAILS:SEED`, a file or pattern of mails as rows, or
    the id of a dataset of mails on a hub, which is downloaded. Indexed once. Raises `Problems`."""
    if Path(source).suffix in (".sqlite", ".db") and Path(source).is_file():
        return Path(source)
    mails: Iterable[Mail]
    if source.startswith(f"{GENERATED}:"):
        n_mails, seed = map(int, source.split(":")[1:])
        mails = [mail for mail, _ in generated(n_mails, seed)]
        key = hashlib.sha256(repr(mails).encode()).hexdigest()
    else:
        is_dataset = is_id(source) and not Path(source).exists()
        names = Hub(repo=source).fetched(lambda _: None).train_files if is_dataset else expand(source)
        files = [Path(name) for name in names]
        if not files or not all(file.is_file() for file in files):
            fix = "use a .sqlite file, a file of mails, or the id of a dataset of mails"
            raise Problems(Problem("environment.mailbox", f"{source} is no file and no dataset", fix, "not-found"))
        file_stats = [(str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        key, mails = hashlib.sha256(json.dumps(file_stats).encode()).hexdigest(), mails_in(map(str, files))
    path = store() / "mailboxes" / f"{key[:16]}.sqlite"
    return path if path.is_file() else write_mailbox(path, mails)


@settings
class EmailQuestions(Dataset):
    """Questions about generated mails, for environment=email_search."""

    n_mails: Annotated[int, Field(ge=3)] = 360
    """Mails in the mailbox."""
    n_prompts: AtLeastOne = 592
    """Training questions, all distinct."""
    n_val: Count = 128
    """Held-out questions, disjoint from the training questions; 0 disables validation."""
    noise: Annotated[Share, IMITATED] = 0.0
    """Share of the turns of demonstrations that are mistakes; held-out demonstrations have none."""
    repeats: Annotated[AtLeastOne, IMITATED] = 1
    """Demonstrations of each training question, each with mistakes of its own."""
    data_seed: Annotated[int, Field(ge=0)] = 7
    """Seed of mails and questions; independent of the run's seed, so runs with other seeds see the same data."""

    @property
    def held_out(self) -> int:
        return self.n_val

    @property
    def mailbox(self) -> str:
        return f"{GENERATED}:{self.n_mails}:{self.data_seed}"

    def problems(self) -> list[Problem]:
        maximum = len(VALUES) * (self.n_mails - self.n_mails // NOTES)
        if self.n_prompts + self.n_val <= maximum:
            return []
        got = f"{self.n_prompts} training and {self.n_val} held-out questions are more than the {maximum} of the mails"
        return [Problem("data.n_mails", got, "use more mails, or fewer questions")]

    def read(self, split: Split, kind: Kind) -> Iterator[Row | RefusedRow]:
        if problems := self.problems():
            raise Problems(problems)
        questions = self._questions[: self.n_prompts] if split == "train" else self._questions[self.n_prompts :]
        if kind != "answers":
            yield from (self._row(split, number, *question) for number, question in enumerate(questions, start=1))
            return
        rounds, noise = (self.repeats, self.noise) if split == "train" else (1, 0.0)
        with closing(Mailbox(mailbox_of(self.mailbox))) as mailbox:
            for number, question in enumerate([*questions] * rounds, start=1):
                draw = random.Random(f"noise {self.data_seed} {number}")
                yield self._row(split, number, *question, turns=self._demonstration(mailbox, *question, draw, noise))

    @cached_property
    def _mails(self) -> dict[str, tuple[Mail, Mapping[str, str]]]:
        return {mail.message_id: (mail, facts) for mail, facts in generated(self.n_mails, self.data_seed)}

    @cached_property
    def _questions(self) -> list[tuple[Mail, str]]:
        questions = [(mail, fact) for mail, facts in self._mails.values() for fact in facts]
        return random.Random(f"questions {self.data_seed}").sample(questions, self.n_prompts + self.n_val)

    def _row(self, split: Split, number: int, mail: Mail, fact: str, turns: tuple[Message, ...] = ()) -> Row:
        question = f"which {fact} is the {mail.subject} meeting with {mail.sender}"
        return Row(
            where=f"email_search:{split}:{number}", prompt=(Message("user", question), *turns) if turns else question,
            ground_truth=self._mails[mail.message_id][1][fact], data_source="email_search", ability="search",
            extra_info={"message_ids": [mail.message_id], "mailbox": self.mailbox},
        )  # fmt: skip

    def _demonstration(
        self, mailbox: Mailbox, mail: Mail, fact: str, draw: random.Random, noise: float
    ) -> tuple[Message, ...]:
        """The turns after the question: search, read, answer, with the tools' results between them."""
        keywords = mail.subject if draw.random() < noise else f"{mail.subject} {mail.sender}"
        results = mailbox.search(keywords)
        others = [result.message_id for result in results if result.message_id != mail.message_id]
        reads_right = len(others) < len(results) and not (others and draw.random() < noise)
        opened, facts = self._mails[mail.message_id if reads_right else draw.choice(others)]
        gives_up = fact not in facts or draw.random() < noise
        answer = {"answer": NO_IDEA if gives_up else facts[fact], "sources": [] if gives_up else [opened.message_id]}
        return (
            _call("search_inbox", keywords=keywords), _result("\n".join(result.line for result in results)),
            _call("read_email", message_id=opened.message_id), _result(opened.text),
            _call("return_final_answer", **answer),
        )  # fmt: skip

    def fingerprint(self) -> str:
        """SHA-256 over the rows themselves, so that a change of how they are drawn changes it."""
        digest = hashlib.sha256()
        for rows in (self.read("train", "prompts"), self.read("train", "answers"), self.read("val", "answers")):
            for row in rows:
                digest.update(repr(row).encode())
        return digest.hexdigest()


def _call(tool: str, **arguments: Any) -> Message:
    call = {"type": "function", "id": "call00000", "function": {"name": tool, "arguments": arguments}}
    return Message("assistant", "", {"tool_calls": [call]})


def _result(text: str) -> Message:
    return Message("tool", text, {"tool_call_id": "call00000"})
