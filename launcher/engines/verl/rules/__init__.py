"""What of a config of verl's is known to fail, or not to be read, without verl: arithmetic in Python, rows in YAML.

Only keys that a run of ours sets, and those that public launch scripts set, are judged; where verl is installed, its
own checks have the last word (`launcher.engines.verl.ask`).
"""

from __future__ import annotations

from typing import Any

from launcher.engines.verl.rules.batches import judge_batches, judge_sizes
from launcher.engines.verl.rules.cluster import judge_cluster
from launcher.engines.verl.rules.data import judge_data, judge_paths, judge_steps
from launcher.engines.verl.rules.facts import LaunchFacts, RuleResult
from launcher.engines.verl.rules.model import judge_model
from launcher.engines.verl.rules.rollout import judge_rollout
from launcher.engines.verl.rules.settings import BatchSizes
from launcher.engines.verl.rules.sft import judge_sft
from launcher.engines.verl.rules.table import judge_packages, judge_rows

SHARED = (judge_rows, judge_model, judge_paths, judge_steps, judge_cluster, judge_packages)
UNKNOWN = LaunchFacts()


def judge(config: dict[str, Any], facts: LaunchFacts = UNKNOWN) -> list[RuleResult]:
    """What the rules say of a config of `main_ppo` or of SFT; no warning of a setting that fails."""
    run = BatchSizes(config)
    if wrong := list(judge_sizes(run)):
        return wrong
    of_program = (judge_batches, judge_rollout, judge_data) if run.sampled else (judge_sft,)
    found = [result for rule in (*of_program, *SHARED) for result in rule(run, facts)]
    failed = {result.problem.where for result in found if result.level == "FAIL"}
    return [*dict.fromkeys(result for result in found if result.level == "FAIL" or result.problem.where not in failed)]
