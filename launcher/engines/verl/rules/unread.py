"""Settings that verl takes and then does not read, where the value shows that something else was meant.

Numbers are lines of verl 0.9.1.
"""

from __future__ import annotations

from typing import Any

from launcher.engines.verl.rules.batches import CRITIC_TOKENS
from launcher.engines.verl.rules.facts import LaunchFacts, Results, fails, warns
from launcher.engines.verl.rules.settings import ACTOR, MODEL, REF, ROLLOUT, RlSizes, engine_of

CLIPPED_BY_BOUNDS = ("vanilla", "gspo", "geo_mean", "cispo")
"""Losses that read clip_ratio_low and clip_ratio_high, which are never null (core_algos.py:1321, 1575, 1960, 2065)."""
RATIO = 0.2
"""clip_ratio, where nothing else is given."""
GRADIENT = 1.0
"""grad_clip of an actor and a critic, which their engines do not read: theirs is optim.clip_grad."""
HOT = 0.01
"""A learning rate with which Adam trains no language model."""
CORRECTION = "algorithm.rollout_correction"
IGNORED: tuple[tuple[str, Any, bool, str, str], ...] = (
    ("data.reward_fn_key", "data_source", True, "rewards read data_source alone", "write it as data_source"),
    ("data.sampler.class_path", None, True, "V1 draws rows by data.shuffle alone", "leave it out"),
    ("trainer.balance_batch", True, True, "V1 always balances", "leave it out"),
    ("trainer.esi_redundant_time", 0, True, "only the deprecated trainer reads it", "leave it out"),
    (f"{ROLLOUT}.repetition_penalty", 1.0, False, "answers are always sampled with 1.0", "leave it out"),
    (f"{MODEL}.tiled_mlp.enabled", False, False, "no engine reads it", "use a smaller micro-batch"),
    (f"{ROLLOUT}.over_sample_rate", 0, False, "verl never ends a rollout early", "leave it out"),
    (f"{ACTOR}.freeze_vision_tower", False, False, "no engine freezes it", "leave it out"),
    ("skip.rollout.enable", False, True, "V1 reads skip.rollout_tq", "use skip.rollout_tq.enable=true"),
    (f"{ACTOR}.use_prefix_grouper", False, False, "no engine reads it", "leave it out"),
    (f"{ACTOR}.qat.enable", False, False, "the engine reads fsdp_config.qat", "use fsdp_config.qat.enable=true"),
)  # fmt: skip
"""Settings that are not read, the value that asks for nothing, whether of V1 alone, what verl does, and what to use
(naive.py:42; ppo/utils.py:140; trainer_base.py:582; ray_trainer.py:1695; agent_loop_tq.py:68;
fsdp/transformer_impl.py:173, 324)."""
SWITCHED: tuple[tuple[str, tuple[Any, ...], str, str], ...] = (
    (f"{ACTOR}.kl_loss_coef", (0.001,), f"{ACTOR}.use_kl_loss", "true"),
    ("algorithm.kl_ctrl.kl_coef", (0.001,), "algorithm.use_kl_in_reward", "true"),
    ("algorithm.kl_ctrl.type", ("fixed",), "algorithm.use_kl_in_reward", "true"),
    (f"{CORRECTION}.rollout_is_threshold", (2.0,), f"{CORRECTION}.rollout_is", "token or sequence"),
    (f"{CORRECTION}.rollout_rs_threshold", (), f"{CORRECTION}.rollout_rs", "one such as token_k1"),
    ("distillation.teacher_models.teacher_model.model_path", (), "distillation.enabled", "true"),
    ("reward.reward_model.model_path", (), "reward.reward_model.enable", "true"),
)  # fmt: skip
"""Settings that are read with another one alone, values that ask for nothing, that other one, and what turns it on
(losses.py:132, trainer_base.py:1754, rollout_corr_helper.py:854, distillation.py:270, reward_loop.py:281)."""
PROFILED = (ACTOR, REF, ROLLOUT, "critic")
"""What has a profiler of its own."""


def unread(run: RlSizes, facts: LaunchFacts) -> Results:
    for key, nothing, of_v1, what, fix in IGNORED:
        if (value := run(key, nothing)) not in (None, nothing) and (run.v1 or not of_v1):
            yield warns(key, f"{str(value).lower() if isinstance(value, bool) else value} is not read: {what}", fix)
    yield from _switched_off(run)
    tool = run("global_profiler.tool")
    if tool and run("global_profiler.steps") and not any(run(f"{place}.profiler.enable") for place in PROFILED):
        got = f"{tool} records nothing, as no part of the run has profiler.enable"  # profile.py:123
        yield warns("global_profiler.tool", got, f"use {ACTOR}.profiler.enable=true")
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
        yield from _of_fsdp(run, section)
    if run(f"{ROLLOUT}.do_sample") is False and run(f"{ROLLOUT}.temperature") > 0:
        got = f"false is not read: answers are sampled at temperature {run(f'{ROLLOUT}.temperature')}"
        yield warns(f"{ROLLOUT}.do_sample", got, "leave it out; training samples")
    yield from _odd(run)
    yield from _by_v1(run)


def _of_fsdp(run: RlSizes, section: str) -> Results:
    """Settings of an actor or a critic beside those of its engine, of which one is read."""
    (kind, settings), strategy = engine_of(run(section)), run(f"{section}.strategy")
    place = f"{section}.fsdp_config" if section == ACTOR else f"{section}.fsdp"
    if kind != "fsdp":
        return
    if settings.get("offload_policy") and strategy == "fsdp":
        fix = f"use {section}.strategy=fsdp2, or param_offload=true"
        yield warns(f"{place}.offload_policy", "true, which fsdp does not read", fix)
    if (named := settings.get("strategy", "fsdp")) not in ("fsdp", strategy):  # actor.py:325, critic.py:219
        got = f"{named} is not read, and {section}.strategy={strategy} is"
        yield warns(f"{place}.strategy", got, f"use {section}.strategy={named}", "conflicting-settings")
    compiles = settings.get("use_torch_compile", True)  # fsdp/transformer_impl.py:185
    if run(f"{section}.use_torch_compile") is False and compiles:
        got = f"false is not read, and {place}.use_torch_compile=true is"
        yield warns(f"{section}.use_torch_compile", got, f"use {place}.use_torch_compile=false")


def _switched_off(run: RlSizes) -> Results:
    """Settings of a part of the training that is off."""
    for key, nothing, switch, on in SWITCHED:
        if (value := run(key)) not in (None, False, 0, *nothing) and not run(switch):
            state = str(run(switch)).lower() if run(switch) is False else "null"
            got = f"{value} is not read, as {switch} is {state}"
            yield warns(key, got, f"use {switch}={on}, or leave it out", "conflicting-settings")
    if run("reward.sandbox_fusion.url") and run("reward.custom_reward_function.path"):  # ppo/reward.py:134
        got = "not read, as the reward function is reward.custom_reward_function"
        yield warns("reward.sandbox_fusion.url", got, "leave it out, or call the sandbox in the function")
    if run(f"{ROLLOUT}.ignore_eos") and (engine := run(f"{ROLLOUT}.name")) != "vllm":  # vllm_async_server.py:624
        yield warns(f"{ROLLOUT}.ignore_eos", f"true, which {engine} does not get", "leave it out, or use name=vllm")


def _odd(run: RlSizes) -> Results:
    """Numbers that verl takes, and that turn what they are for around."""
    shares = ["algorithm.gamma", "algorithm.lam"] if run("algorithm.adv_estimator") == "gae" else []
    for key in shares:
        if not 0 <= (run(key) or 0) <= 1:
            yield warns(key, f"{run(key)}: the returns grow without limit, or change their sign", "use 1.0")
    pushes = [f"{ACTOR}.kl_loss_coef"] if run(f"{ACTOR}.use_kl_loss") else []
    pushes += [f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high", *(["critic.cliprange_value"] if shares else [])]
    for key in pushes:
        if (run(key) or 0) < 0:
            yield warns(key, f"{run(key)}: it works against what it is for", "use a number above 0")
    for section in (ACTOR, *(["critic"] if run.needs_critic else [])):
        rate = run(f"{section}.optim.lr")
        if "adam" in str(run(f"{section}.optim.optimizer")).lower() and isinstance(rate, int | float) and rate >= HOT:
            yield warns(f"{section}.optim.lr", f"{rate}, with which the model is ruined in a few steps", "use 1e-6")
    asked, read = run("data.max_prompt_length"), run(f"{ROLLOUT}.prompt_length")
    if isinstance(read, int) and read < asked:  # agent_loop.py:354
        got = f"{read}, and data.max_prompt_length is {asked}: a longer prompt ends the run"
        yield warns(f"{ROLLOUT}.prompt_length", got, [asked], "conflicting-settings")
    asked, read = run("data.max_response_length"), run(f"{ROLLOUT}.response_length")
    if isinstance(read, int) and read != asked:
        got = f"{read}, and data.max_response_length is {asked}: answers have the first"
        yield warns(f"{ROLLOUT}.response_length", got, [asked], "conflicting-settings")
    if run(f"{ROLLOUT}.multi_turn.max_parallel_calls", 1) < 1:
        yield warns(f"{ROLLOUT}.multi_turn.max_parallel_calls", "0: no tool is called", "use 1")


def _by_v1(run: RlSizes) -> Results:
    if not run.v1:
        return
    tokens, read = (run(f"critic.ppo_{name}max_token_len_per_gpu", CRITIC_TOKENS) for name in ("", "infer_"))
    if run.needs_critic and run("critic.use_dynamic_bsz") and tokens != read:  # trainer_base.py:267
        got = f"{tokens} is not read: V1 gives the critic ppo_infer_max_token_len_per_gpu={read}"
        fix = f"use +critic.ppo_infer_max_token_len_per_gpu={tokens}"
        yield warns("critic.ppo_max_token_len_per_gpu", got, fix)
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
