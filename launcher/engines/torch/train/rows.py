"""A dataset's rows in memory, read and turned into tokens once."""

from __future__ import annotations

from dataclasses import dataclass, field

from launcher.data.refused import RefusedLog
from launcher.spec.algorithm import Kind
from launcher.spec.data import RefusedRow, Row, Split, make_answer, needs_rollout
from launcher.spec.reward import Answer, Reward
from launcher.text.encoder import Encoder, Pair, Tokens


@dataclass(frozen=True)
class Rows:
    """Good rows and their tokens, place by place."""

    rows: list[Row] = field(default_factory=list)
    tokens: list[Tokens | Pair] = field(default_factory=list)
    refused: int = 0

    def answer(self, place: int, text: str) -> Answer:
        return make_answer(self.rows[place], text)


def read_rows(encoder: Encoder, split: Split, kind: Kind, log: RefusedLog, reward: Reward) -> Rows:
    """Every good row of a split; the log counts and keeps the others, such as prompts that `reward` could not score."""
    found, before = Rows(), log.refused
    for row in log.sift(encoder.data.read(split, kind)):
        encode = encoder.pair if row.rejected else encoder.demonstration if kind == "answers" else encoder.prompt
        reason = reward.unscorable_reason(make_answer(row)) if needs_rollout(row, split, kind) else ""
        made = RefusedRow(row.where, reason, repr(row)) if reason else encode(len(found.rows), row)
        if isinstance(made, RefusedRow):
            log.good, log.rows = log.good - 1, log.rows - 1  # it was a good row until its tokens were counted
            log.keep(made)
        else:
            found.rows.append(row)
            found.tokens.append(made)
    return Rows(found.rows, found.tokens, log.refused - before)
