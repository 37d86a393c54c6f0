"""Rules on what in a config of verl fails, or is not read, judged without verl: rows in YAML, arithmetic in Python.

Only keys that a run of ours sets, and those that public launch scripts set, are judged; where verl is installed, its
own checks have the last word (`launcher.engines.verl.ask`).
"""

from __future__ import annotations

from typing import Any

from launcher.engines.verl.rules.facts import LaunchFacts, RuleResult
from launcher.engines.verl.rules.settings import BatchSizes
from launcher.engines.verl.rules.sizes import judge_sampled, judge_sft
from launcher.engines.verl.rules.table import judge_labels, judge_packages, judge_rows, read_table

UNKNOWN = LaunchFacts()


def judge(config: dict[str, Any], facts: LaunchFacts = UNKNOWN) -> list[RuleResult]:
    """What the rules say of a config of `main_ppo` or of SFT; no warning of a setting that fails."""
    run, table = BatchSizes(config), read_table()
    if wrong := list(judge_rows(run, table.sizes)):  # everything else divides by these
        return wrong
    program_rules = (judge_sampled, judge_labels) if run.sampled else (judge_sft,)
    found = [*judge_rows(run, table.settings)]
    found += [result for rule in (*program_rules, judge_packages) for result in rule(run, facts)]
    failed = {result.problem.where for result in found if result.level == "FAIL"}
    return [*dict.fromkeys(result for result in found if result.level == "FAIL" or result.problem.where not in failed)]
