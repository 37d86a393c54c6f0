"""`python -m launcher.engines.verl.score RUN_FOLDER`: scores answers for `reward_bridge`, a line of JSON each."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

from launcher.spec.reward import Answer, Reward, score_safely, truth_text
from launcher.spec.stored import read_run

NO_SCORE = 0.0
"""Of an answer that cannot be scored: verl has no word for it."""


def main() -> None:
    """Answers go to standard output, where a reward must not print: that goes to standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    reward = read_run(Path(sys.argv[1])).reward
    for line in sys.stdin:
        out.write(json.dumps(scored(reward, json.loads(line))) + "\n")
        out.flush()


def scored(reward: Reward, asked: dict[str, object]) -> dict[str, float]:
    """The score as verl's `compute_score` returns it: `acc` is what validation reports, and each part stands beside
    it, always with the same names."""
    extra, truth = asked["extra_info"], asked["ground_truth"]
    answer = Answer(
        str(asked["response"]), truth_text(truth), str(asked["data_source"]), extra if isinstance(extra, dict) else {},
        typed_truth=None if isinstance(truth, str) else truth,
    )  # fmt: skip
    found = score_safely(reward, [answer])
    total = found.total[0]
    if found.faults and found.faults[0]:
        print(f"an answer has no score: {found.faults[0]}", file=sys.stderr, flush=True)
    parts = {name: found.parts.get(name, [math.nan])[0] for name in reward.weight_by_name()}
    plain = {name: NO_SCORE if math.isnan(value) else value for name, value in parts.items()} if len(parts) > 1 else {}
    score = NO_SCORE if math.isnan(total) else total
    return {"score": score, "acc": score, **plain}


if __name__ == "__main__":
    main()
