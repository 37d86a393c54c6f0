"""Rules on what scores the answers; verl finds its faults only after a whole rollout."""

from __future__ import annotations

from launcher.core.problems import short_repr
from launcher.engines.verl.rules.facts import LaunchFacts, Results, fails, warns
from launcher.engines.verl.rules.settings import BatchSizes, is_set
from launcher.engines.verl.rules.table import read_table

FUNCTION, METRIC = "reward.custom_reward_function", "algorithm.filter_groups.metric"


def judge_function(run: BatchSizes, facts: LaunchFacts) -> Results:
    """Faults of the user's own function, and of the keys that it returns where one of them filters the groups."""
    if facts.unaccepted:
        got = f"the function takes no {', '.join(facts.unaccepted)}, which verl gives to it with every answer"
        yield fails(f"{FUNCTION}.name", got, f"add {', '.join(f'{name}=None' for name in facts.unaccepted)}")
    metric, keys = run(METRIC), facts.reward_keys
    if run("algorithm.filter_groups.enable") and keys is not None and metric not in ("reward", *keys):
        got = f"{metric}, which the dict of your reward function lacks: it has {', '.join(sorted(keys))}"
        yield fails(METRIC, got, f"use reward, or return {metric} beside score", "unknown-choice")


def judge_labels(run: BatchSizes, facts: LaunchFacts) -> Results:
    """The fields that verl's own rewards read in each row: its data source and ground truth."""
    others = is_set(run(f"{FUNCTION}.path")) or run("reward.reward_model.enable")
    if others or run("reward.reward_manager.source") == "importlib":
        return
    if facts.run.unlabelled:
        got = f"{facts.run.unlabelled:,} rows have no ground truth, and verl scores their answers all the same"
        yield warns("data.val_files", got, "leave them out, or write reward_model.ground_truth", "bad-row")
    known = read_table().sources
    for split, sources in (("train", facts.run.data_sources), ("val", facts.run.val_data_sources)):
        for source in sorted(sources or ()):
            if source not in known and not source.startswith("aime"):
                got = f"{short_repr(source)} has no reward in verl: every answer fails once it is scored"
                near = next((name for name in known if name.lower().endswith(f"/{source.lower()}")), None)
                fix = f"use {FUNCTION}.path, or reward=exact"
                fix = f"write data_source={near} in the rows, or {fix}" if near else fix
                yield fails(f"data.{split}_files", got, fix, "unknown-choice")
