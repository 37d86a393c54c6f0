"""Settings that verl takes and then does not read, where the value shows that something else was meant.

Numbers are lines of verl 0.9.1.
"""

from __future__ import annotations

from launcher.engines.verl.rules.facts import LaunchFacts, Results, fails, warns
from launcher.engines.verl.rules.settings import ACTOR, ROLLOUT, RlSizes, engine_of

CLIPPED_BY_BOUNDS = ("vanilla", "gspo", "geo_mean", "cispo")
"""Losses that read clip_ratio_low and clip_ratio_high, which are never null (core_algos.py:1321, 1575, 1960, 2065)."""
RATIO = 0.2
"""clip_ratio, where nothing else is given."""
GRADIENT = 1.0
"""grad_clip of an actor and a critic, which their engines do not read: theirs is optim.clip_grad."""
CORRECTION = "algorithm.rollout_correction"


def unread(run: RlSizes, facts: LaunchFacts) -> Results:
    low, high = run(f"{ACTOR}.clip_ratio_low"), run(f"{ACTOR}.clip_ratio_high")
    ratio, loss = run(f"{ACTOR}.clip_ratio"), run(f"{ACTOR}.policy_loss.loss_mode")
    if loss in CLIPPED_BY_BOUNDS and None not in (low, high) and ratio not in (RATIO, low, high):
        got = f"{ratio}, and the loss {loss} reads clip_ratio_low={low} and clip_ratio_high={high}"
        yield warns(f"{ACTOR}.clip_ratio", got, "set clip_ratio_low and clip_ratio_high")
    for section in (ACTOR, *(["critic"] if run.needs_critic else [])):
        norm, read = run(f"{section}.grad_clip", GRADIENT), run(f"{section}.optim.clip_grad")
        if norm not in (GRADIENT, read):
            got = f"{norm} is not read, and {section}.optim.clip_grad={read} is"
            yield warns(f"{section}.grad_clip", got, f"use {section}.optim.clip_grad={norm}")
        strategy, settings = run(f"{section}.strategy"), engine_of(run(section))[1]
        if settings.get("offload_policy") and strategy == "fsdp":
            where = f"{section}.fsdp_config.offload_policy" if section == ACTOR else f"{section}.fsdp.offload_policy"
            yield warns(where, "true, which fsdp does not read", f"use {section}.strategy=fsdp2, or param_offload=true")
    if run(f"{ROLLOUT}.do_sample") is False and run(f"{ROLLOUT}.temperature") > 0:
        got = f"false is not read: answers are sampled at temperature {run(f'{ROLLOUT}.temperature')}"
        yield warns(f"{ROLLOUT}.do_sample", got, "leave it out; training samples")
    yield from _by_v1(run)


def _by_v1(run: RlSizes) -> Results:
    if not run.v1:
        return
    if run(f"{CORRECTION}.bypass_mode"):  # only the deprecated trainer calls apply_bypass_mode
        for name in ("rollout_is", "rollout_rs"):
            if run(f"{CORRECTION}.{name}") is not None:
                got = f"{run(f'{CORRECTION}.{name}')}, which V1 does not read with bypass_mode"
                yield warns(f"{CORRECTION}.{name}", got, "use bypass_mode=false")
        if run(f"{CORRECTION}.loss_type") == "reinforce":
            got = "reinforce, which V1 does not read: it trains with the clipped loss"
            yield warns(f"{CORRECTION}.loss_type", got, "use ppo_clip, or trainer.use_v1=false")
    if run("algorithm.use_pf_ppo"):  # _compute_advantage writes by the rows' old order
        got = "true: V1 gives the rows the advantages of other rows"
        yield fails("algorithm.use_pf_ppo", got, "use false, or trainer.use_v1=false", "not-supported")
