"""Answer questions about a mailbox: search it, read mails, and return an answer with its sources
(`environment=email_search`).

A row has the answer as its ground truth, and in extra_info `message_ids`, the mails that hold it, and `mailbox`, unless
the setting names one. Rewards of turns are added to the episode's reward, which turn-level credit assignment gives
to the last turn. `Final.facts` counts what an evaluation reports (`launcher.core.rubric`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from launcher.core.problems import Problem, Problems
from launcher.core.settings import settings
from launcher.data.email_search import GENERATED, NO_IDEA, mailbox_of
from launcher.data.mailbox import MOST_HITS, Mailbox
from launcher.environments.several import SeveralTurns
from launcher.environments.tools import ToolSession
from launcher.hubs.repo import is_id
from launcher.spec.data import Row
from launcher.spec.environment import Final, History, Session

_STOP_WORDS = frozenset({"a", "an", "at", "in", "is", "it", "on", "the"})


def normalised(answer: str) -> str:
    """Its words in lower case, without articles and prepositions; answers that are equal so count as the same."""
    words = re.findall(r"\w+(?:[.,:']\w+)*", answer.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))
    return " ".join(word for word in words if word not in _STOP_WORDS)


class EmailTools:
    """The tools of one episode, and its counters."""

    def __init__(self, rules: EmailSearch) -> None:
        self._rules = rules
        self._mailbox: Mailbox | None = None
        self.done, self.turn_reward = "", 0.0

    def reset(self, row: Row) -> None:
        self._truth = normalised(row.ground_truth or "")
        self._source_ids = frozenset(map(str, row.extra_info.get("message_ids", ())))
        self._mailbox = Mailbox(mailbox_of(self._rules.mailbox or row.extra_info["mailbox"]))
        self._searches, self._read_ids = list[tuple[str, ...]](), list[str]()
        self._listed: Sequence[str] = ()
        self._found_source = self._read_source = self._is_correct = False
        self._sources = frozenset[str]()

    def close(self) -> None:
        if self._mailbox:
            self._mailbox.close()

    # ---- tools

    def search_inbox(self, keywords: str, sender: str = "", sent_after: str = "", sent_before: str = "") -> str:
        """Find mails that have all the keywords, the best first. Dates are written as 2026-03-31. Gives the id, sender
        and subject of each."""
        assert self._mailbox
        query = (*sorted({*keywords.lower().split()}), sender.lower(), sent_after, sent_before)
        self.turn_reward += self._rules.repeated * (query in self._searches)
        self._searches.append(query)
        mails = self._mailbox.search(keywords, sender, sent_after, sent_before, self._rules.max_results)
        self._listed = [mail.message_id for mail in mails]
        if self._source_ids & {*self._listed} and not self._found_source:
            self._found_source, self.turn_reward = True, self.turn_reward + self._rules.found
        return "\n".join(mail.line for mail in mails) or "No mail has all of these words."

    def read_email(self, message_id: str) -> str:
        """Read a whole mail."""
        assert self._mailbox
        mail = self._mailbox.read(message_id)
        if not mail:
            raise ValueError(f"there is no mail {message_id}; use an id that search_inbox gives")
        self._read_ids.append(message_id)
        if message_id in self._source_ids and not self._read_source:
            self._read_source, self.turn_reward = True, self.turn_reward + self._rules.read
        return mail.text

    def return_final_answer(self, answer: str, sources: list[str]) -> str:
        """Answer the question with the ids of the mails that say so, and end. The answer may be "I don't know"."""
        if normalised(answer) in (normalised(NO_IDEA), "i do not know"):
            self.done = "gave-up"
            return ""
        self.done, self._sources, self._is_correct = "finished", frozenset(sources), normalised(answer) == self._truth
        return ""

    # ---- rewards

    @property
    def state(self) -> str:
        """The mails of the last search, and all that were read."""
        return f"listed {' '.join(self._listed)}, read {' '.join(sorted({*self._read_ids}))}"

    def reward(self, episode: History) -> Final:
        answered = self.done == "finished"
        reward = 0.0 if not answered else self._rules.right if self._is_correct else self._rules.wrong
        repeated = len(self._searches) - len({*self._searches})
        facts = {
            "answer_correct": self._is_correct, "attempted_answer": answered,
            "returned_i_dont_know": self.done == "gave-up",
            "ever_found_right_email": self._found_source, "ever_read_right_email": self._read_source,
            "num_searches": len(self._searches), "num_repeated_searches": repeated, "num_turns": len(episode.turns),
            "sources_correct": answered and bool(self._source_ids) and self._sources == self._source_ids,
            "num_sources": len(self._sources),
        }  # fmt: skip
        return Final(reward, facts={name: float(value) for name, value in facts.items()})


@settings
class EmailSearch(SeveralTurns):
    """Questions about the mails of a mailbox. An answer is right where its words are those of the ground truth."""

    mailbox: str = ""
    """A .sqlite file that was indexed before, a file or pattern of mails as rows (message_id, from, to, date, subject,
    body), or the id of a dataset of such rows on a hub; by default the one that each row names."""
    max_results: int = MOST_HITS
    """Mails that a search shows."""
    right: float = 1.0
    """Reward of an episode with the right answer. "I don't know" and no answer have 0."""
    wrong: float = -0.5
    """Reward of an episode with a wrong answer. Where right answers are rare at first, a loss teaches to give up."""
    found: float = 0.25
    """Reward of the turn whose search shows the right mail first."""
    read: float = 0.25
    """Reward of the turn that reads the right mail first."""
    repeated: float = -0.1
    """Reward of a turn that makes a search again."""

    @property
    def scores(self) -> bool:
        return True

    def problems(self) -> list[Problem]:
        try:
            if self.mailbox and not is_id(self.mailbox) and not self.mailbox.startswith(f"{GENERATED}:"):
                mailbox_of(self.mailbox)
        except Problems as error:
            return list(error.problems)
        return []

    def session(self) -> Session:
        return ToolSession(EmailTools(self), self)
