"""`python -m launcher.engines.verl.score RUN_FOLDER`: scores answers for `reward_bridge`, a line of JSON each."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

from launcher.core import activity
from launcher.core.problems import short_repr
from launcher.spec.reward import Answer, Reward, score_safely, truth_text
from launcher.spec.stored import read_run

WAITS = "rlrun: waits"
"""Begins the line on standard error about a reward that takes long; `reader` reads it among verl's lines."""
NO_SCORE = 0.0
"""Score of an answer that cannot be scored, for which verl has no value."""


def main() -> None:
    """Answers go to standard output, where a reward must not print: that goes to standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    reward = read_run(Path(sys.argv[1])).reward
    with activity.reported_to(report_wait):
        for line in sys.stdin:
            out.write(json.dumps(scored(reward, json.loads(line))) + "\n")
            out.flush()


def report_wait(text: str, for_s: float) -> None:
    print(f"{WAITS} {for_s:.0f} s: {text}", file=sys.stderr, flush=True)


def scored(reward: Reward, asked: dict[str, object]) -> dict[str, float]:
    """The score as verl's `compute_score` returns it: `acc` is what validation reports, and each part stands beside
    it, always with the same names."""
    extra, truth = asked["extra_info"], asked["ground_truth"]
    index = extra.get("index") if isinstance(extra, dict) else None
    answer = Answer(
        str(asked["response"]), truth_text(truth), str(asked["data_source"]), extra if isinstance(extra, dict) else {},
        where=f"with the ground truth {short_repr(truth, 40)}" if index is None else f"{index} (extra_info.index)",
        typed_truth=None if isinstance(truth, str) else truth,
    )  # fmt: skip
    scores = score_safely(reward, [answer])
    total = scores.total[0]
    if scores.faults and scores.faults[0]:
        print(f"an answer has no score: {scores.faults[0]}", file=sys.stderr, flush=True)
    parts = {name: scores.parts.get(name, [math.nan])[0] for name in reward.weight_by_name()}
    plain = {name: NO_SCORE if math.isnan(value) else value for name, value in parts.items()} if len(parts) > 1 else {}
    score = NO_SCORE if math.isnan(total) else total
    return {"score": score, "acc": score, **plain}


if __name__ == "__main__":
    main()
