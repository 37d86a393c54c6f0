"""Mails and questions made from a seed, and mailboxes of files and of a hub."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from launcher.core.files import conf_dir
from launcher.core.problems import Problems
from launcher.data.email_search import NO_IDEA, EmailQuestions, generated, mailbox_of
from launcher.data.mailbox import MOST_HITS, Mail, Mailbox, mail_of, write_mailbox
from launcher.spec.algorithm import Kind
from launcher.spec.data import Row, Split


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLRUN_DATA", str(tmp_path / "data"))
    mailbox_of.cache_clear()
    return tmp_path / "data"


def rows(split: Split, kind: Kind, **values: object) -> list[Row]:
    found = list(EmailQuestions(**values).read(split, kind))  # type: ignore[arg-type]
    return [row for row in found if isinstance(row, Row)]


def calls(row: Row) -> list[tuple[str, dict]]:
    turns = row.prompt if not isinstance(row.prompt, str) else ()
    made = [turn.extra["tool_calls"][0]["function"] for turn in turns if turn.role == "assistant"]
    return [(call["name"], call["arguments"]) for call in made]


def test_each_question_is_answered_by_its_mail_and_held_out_ones_are_none_of_the_others() -> None:
    train, val = rows("train", "prompts"), rows("val", "prompts")
    assert (len(train), len(val), len({str(row.prompt) for row in [*train, *val]})) == (592, 128, 720)
    with closing(Mailbox(mailbox_of("generated:360:7"))) as mailbox:
        for row in [*train, *val]:
            _, what, _, _, topic, _, _, person = str(row.prompt).split()
            (found,) = [each for each in mailbox.search(f"{topic} {person}") if each.subject == topic]
            assert row.extra_info == {"message_ids": [found.message_id], "mailbox": "generated:360:7"}
            mail = mailbox.read(found.message_id)
            assert mail and f" {row.ground_truth}" in mail.body and what in ("day", "city", "hour")


def test_demonstrations_search_read_and_answer_and_noise_is_the_share_of_mistakes() -> None:
    clean = rows("train", "answers")
    assert [row.where for row in clean] == [row.where for row in rows("train", "prompts")]
    for row in clean:
        (search, asked), (read, opened), (end, answer) = calls(row)
        assert (search, read, end) == ("search_inbox", "read_email", "return_final_answer")
        assert len(asked["keywords"].split()) == 2 and [opened["message_id"]] == row.extra_info["message_ids"]
        assert answer == {"answer": row.ground_truth, "sources": row.extra_info["message_ids"]}
    noisy = rows("train", "answers", noise=0.5, repeats=3)
    short = [len(calls(row)[0][1]["keywords"].split()) == 1 for row in noisy]
    right = [calls(row)[2][1]["answer"] == row.ground_truth for row in noisy]
    assert len(noisy) == 3 * 592 and 0.4 < sum(short) / len(short) < 0.6 and 0.05 < sum(right) / len(right) < 0.4
    assert any(calls(row)[2][1] == {"answer": NO_IDEA, "sources": []} for row in noisy)
    assert [calls(row) for row in rows("val", "answers", noise=0.5)] == [calls(row) for row in rows("val", "answers")]


@pytest.mark.parametrize("n_mails", [3, 384, 5_000])
def test_mails_of_any_number_are_distinct_and_the_same_for_a_seed(n_mails: int) -> None:
    made = generated(n_mails, 1)
    assert len({mail.message_id for mail, _ in made}) == len(made) == n_mails
    plans = [(mail.sender, mail.subject) for mail, holds in made if holds]
    assert len(set(plans)) == len(plans) == n_mails - n_mails // 3
    assert made == generated(n_mails, 1) != generated(n_mails, 2)
    assert EmailQuestions(data_seed=1).fingerprint() == EmailQuestions(data_seed=1).fingerprint()


def test_more_questions_than_the_mails_answer_are_refused() -> None:
    (problem,) = EmailQuestions(n_mails=30).problems()
    assert "592 training and 128 held-out questions are more than the 60" in problem.got


def test_the_words_of_the_task_are_tokens_of_the_tiny_model() -> None:
    """So that an episode is short: about 120 tokens, where it has 500 characters."""
    words = yaml.safe_load((conf_dir() / "model" / "tiny-email.yaml").read_text())["words"]
    for row in rows("val", "prompts"):
        assert {row.ground_truth, *str(row.prompt).split()[4:5]} <= {*words, "8", "9"}


# ---- mailboxes


MAIL = {"message_id": "<1@x>", "from": "a@x.org", "to": ["b@x.org", "c@x.org"], "date": "2001-05-14",
        "subject": "gas", "body": "The pipeline is full."}  # fmt: skip


def test_a_mailbox_is_searched_by_all_words_and_cannot_be_changed(tmp_path: Path) -> None:
    mails = [mail_of({**MAIL, "message_id": f"m{at:02}", "date": f"2001-05-{at + 1:02}"}) for at in range(9)]
    mails += [mails[0], Mail("x", "z", "", "", "gas", 'a "quoted" NEAR OR (')]
    with closing(Mailbox(write_mailbox(tmp_path / "a.sqlite", mails))) as mailbox:

        def found(keywords: str, **more: str) -> list[str]:
            return [each.message_id for each in mailbox.search(keywords, **more)]  # type: ignore[arg-type]

        first = [f"m{at:02}" for at in range(MOST_HITS)]
        assert found("pipelines FULL") == first, "words are stemmed, and equal ranks are in order"
        assert found("gas", after="2001-05-03", before="2001-05-05") == ["m02", "m03"]
        assert found('NEAR "quoted" (') == ["x"], "nothing is an operator"
        assert (found("pipeline", sender="b"), found("gas", sender="z")) == ([], ["x"])
        assert mailbox.read("nobody") is None
        assert "to: b@x.org, c@x.org" in (mailbox.read("m00") or mails[1]).text
        with pytest.raises(ValueError, match="no word"):
            mailbox.search('" * ')
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            mailbox._base.execute("delete from places")


def test_a_mailbox_is_made_of_files_once(tmp_path: Path, store: Path) -> None:
    file = tmp_path / "mails.jsonl"
    file.write_text("\n".join(json.dumps({**MAIL, "message_id": f"m{at}"}) for at in range(3)))
    path = mailbox_of(str(file))
    assert path.parent == store / "mailboxes" and mailbox_of(str(path)) == path
    mailbox_of.cache_clear()
    assert mailbox_of(str(tmp_path / "*.jsonl")) == path
    file.write_text('{"subject": "no id"}')
    mailbox_of.cache_clear()
    with pytest.raises(Problems, match=r"mails.jsonl:1: a mail has no message_id"):
        mailbox_of(str(file))
    with pytest.raises(Problems, match="no file and no dataset"):
        mailbox_of(str(tmp_path / "none.jsonl"))
