"""What verl finds only after the GPUs are taken, or never: a run that hangs, or does something else than was meant.

`validate_config` accepts all of it. Each rule names the value to use instead. The rules are in `rules/`, with the line
of verl 0.9.1 that fails. What cannot be known before a run (all rewards of a group equal, so that DAPO's filter samples
for ever; memory) is not judged here.
"""

from __future__ import annotations

from typing import Any

from launcher.core.problems import Problem
from launcher.engines.verl.rules.batches import batches, sizes
from launcher.engines.verl.rules.cluster import cluster
from launcher.engines.verl.rules.data import data, multi_turn, rewards
from launcher.engines.verl.rules.facts import LaunchFacts, Rule, RuleResult
from launcher.engines.verl.rules.model import model
from launcher.engines.verl.rules.paths import objects, paths
from launcher.engines.verl.rules.profiling import profiling
from launcher.engines.verl.rules.rollout import rollout
from launcher.engines.verl.rules.saving import saving
from launcher.engines.verl.rules.serving import serving
from launcher.engines.verl.rules.settings import RlSizes
from launcher.engines.verl.rules.sft import sft
from launcher.engines.verl.rules.unread import unread
from launcher.engines.verl.rules.values import values

RULES: tuple[Rule, ...] = (
    batches, model, values, saving, unread, rollout, serving, data, rewards, multi_turn, paths, objects, cluster,
    profiling,
)  # fmt: skip
UNKNOWN = LaunchFacts()


def results(config: dict[str, Any], facts: LaunchFacts = UNKNOWN) -> list[RuleResult]:
    """What the rules say of a config that `validate_config` accepts, of `main_ppo` or of SFT; each thing once."""
    if "actor_rollout_ref" not in config:
        return list(dict.fromkeys(sft(config, facts)))
    run = RlSizes(config)
    if wrong := list(sizes(run)):
        return wrong
    return list(dict.fromkeys(found for rule in RULES for found in rule(run, facts)))


def problems(config: dict[str, Any], facts: LaunchFacts = UNKNOWN) -> list[Problem]:
    """Why the run would fail, hang, or not do what was asked."""
    return [found.problem for found in results(config, facts) if found.level == "FAIL"]


def warnings(config: dict[str, Any], facts: LaunchFacts = UNKNOWN) -> list[Problem]:
    """What goes on, and probably not as it was meant."""
    return [found.problem for found in results(config, facts) if found.level == "WARN"]
