"""Values that verl looks at only in its workers, most of them after a whole rollout.

Numbers are lines of verl 0.9.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from launcher.engines.verl.rules import engine
from launcher.engines.verl.rules.early import AGGREGATIONS
from launcher.engines.verl.rules.facts import LaunchFacts, Results, RuleResult, fails, warns
from launcher.engines.verl.rules.optim import optimizer, warmup
from launcher.engines.verl.rules.saving import steps_of
from launcher.engines.verl.rules.sections import not_one_of, refused
from launcher.engines.verl.rules.settings import ACTOR, AGENT_LOOPS, MODEL, REF, ROLLOUT, RlSizes, divisors, engine_of

ESTIMATORS = (
    "gae", "grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "reinforce_plus_plus",
    "reinforce_plus_plus_baseline", "remax", "opo", "gpg", "gdpo", "optimal_token_baseline",
    "tir_optimal_token_baseline",
)  # fmt: skip
WITHOUT_V1 = {
    "remax": "the baseline of a greedy answer",
    "gdpo": "the rewards of each kind",
    "optimal_token_baseline": "the sum of squared probabilities",
    "tir_optimal_token_baseline": "the sum of squared probabilities",
}
"""Estimators of which V1 does not compute what they need: the first rollout ends in an error."""
LOSSES = (
    "vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro", "cispo",
    "bypass_mode",
)  # fmt: skip
_DAPO = "with clip_ratio_high=0.28 and algorithm.filter_groups"
_DR_GRPO = "with loss_agg_mode=seq-mean-token-sum-norm and algorithm.norm_adv_by_std_in_grpo=false"
BY_OTHER_SETTINGS = {
    "algorithm.adv_estimator": {"dapo": f"grpo, {_DAPO}", "dr_grpo": f"grpo, {_DR_GRPO}", "ppo": "gae",
                                "gspo": "grpo, with policy_loss.loss_mode=gspo"},
    f"{ACTOR}.policy_loss.loss_mode": {"dapo": f"vanilla, {_DAPO}", "dr_grpo": f"vanilla, {_DR_GRPO}",
                                       "ppo": "vanilla", "grpo": "vanilla"},
}  # fmt: skip
"""Algorithms that verl has, without an estimator or a loss of that name."""
KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
PARSERS = ("hermes", "gpt-oss", "qwen3_coder", "glm", "seed", "minimax", "kimi", "deepseek_v4", "gemma4")
BACKENDS = ("naive", "nccl", "nixl", "delta_sharded", "kimi_ckpt_engine", "mooncake", "hccl")
STRATEGIES = {
    "fsdp": ("fsdp", "fsdp2", "fsdp_turbo"),
    "megatron": ("megatron",),
    "veomni": ("veomni",),
    "torchtitan": ("torchtitan",),
}
VALUE_MODELS = ("fsdp", "fsdp2", "megatron", "veomni")
"""Strategies that train a critic (EngineRegistry)."""
REJECTION = (
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3",
)  # fmt: skip
METRICS = ("reward", "acc")
"""What every answer has that one of verl's own functions has scored (replay_buffer.py:32, naive.py:95)."""
METRICS_OF_MATH = (*METRICS, "score", "pred")
"""The same of math_dapo and aime*."""
CORRECTION = "algorithm.rollout_correction"


def values(run: RlSizes, facts: LaunchFacts) -> Results:
    yield from map(_fail, _enumerated(run))
    yield from _strategies(run, facts)
    yield from _losses(run)
    yield from _sampler(run, facts)
    yield from _correction(run)
    yield from _skipping(run)
    if run("trainer.total_epochs") < 1 and run("trainer.total_training_steps") is None:
        yield warns("trainer.total_epochs", f"{run('trainer.total_epochs')}: the run ends without a step", "use 1")
    if run("trainer.val_only") and not run("trainer.val_before_train"):  # trainer_base.py:436
        yield fails("trainer.val_only", "true, which is read with val_before_train only", "use val_before_train=true")
    for key in ("reward.num_workers", f"{ROLLOUT}.agent.num_workers"):
        if (run(key, 1) or 0) < 1:
            yield fails(key, f"{run(key)}: nothing is left to do the work", "use 8")
    for section in (ROLLOUT, *((REF,) if run.needs_ref and not run.ref_in_actor else ())):
        yield from (RuleResult("FAIL", one) for one in refused(run(section), section))


def _fail(found: tuple[str, Any, tuple[str, ...]]) -> RuleResult:
    key, value, _ = found
    if fix := BY_OTHER_SETTINGS.get(key, {}).get(value):
        return fails(key, f"{value}, which verl has by other settings", f"use {fix}", "unknown-choice")
    return RuleResult("FAIL", not_one_of(*found))


def _enumerated(run: RlSizes) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Settings whose value is none of those that verl knows, where the run reads them."""
    agent = f"{ROLLOUT}.agent"
    places: list[tuple[str, tuple[str, ...], bool]] = [
        ("algorithm.adv_estimator", ESTIMATORS, True),
        (f"{ACTOR}.policy_loss.loss_mode", LOSSES, True),
        ("algorithm.kl_ctrl.type", ("fixed", "adaptive"), bool(run("algorithm.use_kl_in_reward"))),
        ("trainer.resume_mode", ("auto", "disable", "resume_path"), True),
        ("trainer.v1.trainer_mode", ("sync", "colocate_async", "separate_async"), run.v1),
        ("trainer.v1.sampler.max_off_policy_strategy", ("drop", "wait"), run.v1),
        ("trainer.device", ("cuda", "npu"), True),
        ("algorithm.pf_ppo.reweight_method", ("pow", "max_min", "max_random"), bool(run("algorithm.use_pf_ppo"))),
        (f"{agent}.default_agent_loop", AGENT_LOOPS, run(f"{agent}.agent_loop_config_path") is None),
        (f"{ROLLOUT}.multi_turn.format", PARSERS, run(f"{agent}.default_agent_loop") == "tool_agent"),
        (f"{ROLLOUT}.checkpoint_engine.backend", BACKENDS,
         run(f"{ROLLOUT}.checkpoint_engine.custom_backend_module") is None),
    ]  # fmt: skip
    for key, allowed, applies in places:
        if applies and run(key) is not None and run(key) not in allowed:
            yield key, run(key), allowed
    kinds = [("algorithm.kl_penalty", run("algorithm.use_kl_in_reward"))]
    kinds.append((f"{ACTOR}.kl_loss_type", run(f"{ACTOR}.use_kl_loss")))
    for key, applies in kinds:
        if applies and str(run(key)).removesuffix("+") not in KL:  # core_algos.py:2249
            yield key, run(key), KL


def _strategies(run: RlSizes, facts: LaunchFacts) -> Results:
    """engine/base.py:400: what trains is looked up in the workers."""
    yield from _reference(run)
    for section in (ACTOR, *(["critic"] if run.needs_critic else [])):
        kind, settings = engine_of(run(section))
        strategy = run(f"{section}.strategy")
        if strategy not in STRATEGIES.get(kind, (strategy,)):
            known = STRATEGIES[kind]
            other = next((name for name, members in STRATEGIES.items() if strategy in members), None)
            fix = f"use model_engine={other}" if other else f"use {' or '.join(known)}"
            yield fails(f"{section}.strategy", f"{strategy}, in the config of {kind}", fix, "unknown-choice")
        elif section == "critic" and strategy not in VALUE_MODELS:
            got = f"{strategy} trains no critic"
            yield fails("critic.strategy", got, f"use {'fsdp2' if kind == 'fsdp' else 'model_engine=dp'}")
        packed = f"{MODEL if section == ACTOR else 'critic.model'}.use_remove_padding"
        judged = section == ACTOR and (run(f"{ACTOR}.ulysses_sequence_parallel_size") or 1) > 1
        yield from engine.engine(run(section), section, run.gpus, packed=(packed, bool(run(packed))), early=judged)
        yield from optimizer(run(f"{section}.optim"), f"{section}.optim", facts)
        total = steps_of(run, facts)
        yield from warmup(run(f"{section}.optim"), f"{section}.optim", total and total * run.updates)
        if kind == "fsdp":
            where = f"{section}.fsdp_config" if section == ACTOR else f"{section}.fsdp"
            yield from engine.wrapping(settings, where, facts)
        if (run(f"{section}.ppo_epochs") or 0) < 1:  # the metrics of an update are read (trainer_base.py:1862)
            yield fails(f"{section}.ppo_epochs", f"{run(f'{section}.ppo_epochs')}: nothing is trained", "use 1")
        if kind == "megatron":
            yield from engine.megatron(settings, f"{section}.megatron", facts)
            if settings.get("dynamic_context_parallel"):
                yield from _dynamic_context(run, section, settings)
    yield from _shared_groups(run)


def _reference(run: RlSizes) -> Results:
    """The engine of the reference model, which is made before the actor's (engine_workers.py:545)."""
    if not run.needs_ref or run.ref_in_actor:
        return
    kind, parallel = engine_of(run(REF))[0], run.model_parallel(REF)
    strategy, known = run(f"{REF}.strategy"), STRATEGIES.get(kind, ())
    if known and strategy not in known and strategy != run(f"{ACTOR}.strategy"):
        yield RuleResult("FAIL", not_one_of(f"{REF}.strategy", strategy, known))
    packed = (f"{MODEL}.use_remove_padding", bool(run(f"{MODEL}.use_remove_padding")))
    for found in engine.engine(run(REF), REF, run.gpus, packed=packed):
        if found.problem.where != packed[0]:  # the actor's
            yield found
    if kind == "fsdp" and run.gpus % parallel and parallel != run.model_parallel():
        got = f"{run.gpus} GPUs cannot be shared by {parallel} that hold one model"
        fix = divisors(run.gpus, parallel)
        yield fails(f"{REF}.ulysses_sequence_parallel_size", got, fix, "conflicting-settings")


def _shared_groups(run: RlSizes) -> Results:
    """Megatron's groups are those of the engine that is made first: the critic's, then the reference's
    (megatron/transformer_impl.py:244, single_controller/ray/base.py:1008)."""
    if engine_of(run(ACTOR))[0] != "megatron":
        return
    first = ["critic"] if run.needs_critic and engine_of(run("critic"))[0] == "megatron" else []
    first += [REF] if run.needs_ref and not run.ref_in_actor else []
    for section in first:
        for name in ("tensor", "pipeline"):
            key = f"megatron.{name}_model_parallel_size"
            ours, other = run(f"{ACTOR}.{key}") or 1, run(f"{section}.{key}") or 1
            if ours != other:
                got = f"{other}, and {ACTOR}.{key} is {ours}: they share Megatron's groups of GPUs"
                yield fails(f"{section}.{key}", got, [ours], "conflicting-settings")


def _dynamic_context(run: RlSizes, section: str, settings: dict[str, Any]) -> Results:
    """megatron/transformer_impl.py:103-124."""
    where = f"{section}.megatron.dynamic_context_parallel"
    shared = run.gpus // run.model_parallel(section) * (settings.get("context_parallel_size") or 1)
    if section == "critic":
        yield fails(where, "true: it trains language models only", "use false for the critic")
    if shared < 2 or shared % 2:
        yield fails(where, f"dp * cp is {shared}; it has to be even", "use false, or other sizes of tp and pp")
    if not run(f"{MODEL}.use_remove_padding"):
        yield fails(where, f"true, without {MODEL}.use_remove_padding", f"use {MODEL}.use_remove_padding=true")
    if settings.get("pad_to_length"):
        yield fails(where, "true, with pad_to_length", "use pad_to_length=false")
    if settings.get("virtual_pipeline_model_parallel_size") not in (None, 1):
        yield fails(where, "true, with virtual_pipeline_model_parallel_size", "use false")


def _losses(run: RlSizes) -> Results:
    estimator = run("algorithm.adv_estimator")
    if run.needs_critic and run("critic.loss_agg_mode", AGGREGATIONS[0]) not in AGGREGATIONS:  # core_algos.py:1204
        yield RuleResult("FAIL", not_one_of("critic.loss_agg_mode", run("critic.loss_agg_mode"), AGGREGATIONS))
    if run.v1 and estimator in WITHOUT_V1:
        got = f"{estimator} needs {WITHOUT_V1[estimator]}, which trainer.use_v1 does not compute"
        yield fails("algorithm.adv_estimator", got, "use grpo or rloo, or trainer.use_v1=False", "not-supported")
    if estimator == "gae" and not run.needs_critic:
        got = "gae needs the values of a critic, and critic.enable is false"
        yield fails("algorithm.adv_estimator", got, "use critic.enable=null, or grpo", "conflicting-settings")
    loss = run(f"{ACTOR}.policy_loss.loss_mode")
    above = {"dro": ("dro_beta", 0), "clip_cov": ("clip_cov_ratio", 0), "kl_cov": ("kl_cov_ratio", 0)}
    if loss in above:
        name, least = above[loss]
        if not (run(f"{ACTOR}.policy_loss.{name}") or 0) > least:  # core_algos.py:1795, 1887, 2030
            value = {"dro_beta": 0.1, "clip_cov_ratio": 0.0002, "kl_cov_ratio": 0.0002}[name]
            got = f"{run(f'{ACTOR}.policy_loss.{name}')} with loss_mode={loss}"
            yield fails(f"{ACTOR}.policy_loss.{name}", got, f"use {value}", "conflicting-settings")
    for name in ("tau_pos", "tau_neg") if loss == "sapo" else ():  # core_algos.py:1654-1680 divides by both
        if not (run(f"{ACTOR}.{name}", 1) or 0) > 0:
            yield fails(f"{ACTOR}.{name}", f"{run(f'{ACTOR}.{name}')} with loss_mode=sapo", "use 1.0")
    scale = run(f"{ACTOR}.loss_scale_factor")
    if run(f"{ACTOR}.loss_agg_mode") == "seq-mean-token-sum-norm" and scale is not None and not scale > 0:
        yield fails(f"{ACTOR}.loss_scale_factor", f"{scale}, which the loss is divided by", "use null")
    clip = run(f"{ACTOR}.clip_ratio_c")
    if loss == "vanilla" and clip is not None and not clip > 1:  # core_algos.py:1331
        yield fails(f"{ACTOR}.clip_ratio_c", f"{clip}, and the second clip is above 1", "use 3.0")
    adaptive = run("algorithm.use_kl_in_reward") and run("algorithm.kl_ctrl.type") == "adaptive"
    if adaptive and not run("algorithm.kl_ctrl.horizon") > 0:  # core_algos.py:209
        yield fails("algorithm.kl_ctrl.horizon", f"{run('algorithm.kl_ctrl.horizon')} steps", "use 10000")
    fused = run(f"{MODEL}.use_fused_kernels")
    if fused and run(f"{ACTOR}.calculate_sum_pi_squared"):  # fsdp/transformer_impl.py:1344
        yield fails(f"{ACTOR}.calculate_sum_pi_squared", f"true, with {MODEL}.use_fused_kernels", "use false")


def _sampler(run: RlSizes, facts: LaunchFacts) -> Results:
    """replay_buffer.py:165-198."""
    if not run.v1:
        yield warns("trainer.use_v1", "false: verl calls this trainer deprecated", "use true")
        return
    threshold = run("trainer.v1.sampler.max_off_policy_threshold")
    if threshold is not None and not (isinstance(threshold, int) and threshold > 0):
        where = "trainer.v1.sampler.max_off_policy_threshold"
        yield fails(where, f"{threshold} versions of the model", "use 8, or null for no limit")
    sampler = run("trainer.v1.sampler.custom_sampler") or {}
    if bool(sampler.get("path")) != bool(sampler.get("name")):  # trainer_base.py:140
        yield fails("trainer.v1.sampler.custom_sampler", "path or name alone is not read", "use both")
    if run("algorithm.filter_groups.enable"):
        yield from _filter(run, facts)


def _filter(run: RlSizes, facts: LaunchFacts) -> Results:
    """trainer_base.py:196-207: DAPO's groups are chosen by a reward that is known before training on them."""
    metric, where = run("algorithm.filter_groups.metric"), "algorithm.filter_groups.metric"
    of_math = all(source.startswith(("math_dapo", "aime")) for source in facts.data_sources or ())
    known = METRICS_OF_MATH if of_math else METRICS
    own = run("reward.custom_reward_function.path") or run("reward.reward_manager.source") == "importlib"
    if not metric:
        yield fails(where, "not set", "use reward, or acc")
    elif metric in ("seq_reward", "seq_final_reward") or (metric not in known and not own):  # replay_buffer.py:305
        got = f"{metric}, which no answer has after the first rollout"
        yield (warns if own else fails)(where, got, "use reward, or acc", "unknown-choice")
    elif metric != "reward" and facts.reward_keys is not None and metric not in facts.reward_keys:
        got = f"{metric}, which the dict of your reward function lacks: it has {', '.join(sorted(facts.reward_keys))}"
        yield fails(where, got, f"use reward, or return {metric} beside score", "unknown-choice")
    most = run("algorithm.filter_groups.max_inflight_gen_batches", 1)
    if not isinstance(most, int) or most < 1:
        yield fails("algorithm.filter_groups.max_inflight_gen_batches", f"{most} batches", "use 1")
    if run.reward_model and not run("reward.reward_model.enable_resource_pool"):
        got = "false: a reward model on the trainer's GPUs scores after the groups are chosen"
        yield fails("reward.reward_model.enable_resource_pool", got, "use true, with GPUs of its own")
    if (run("algorithm.filter_groups.max_num_gen_batches") or 0) > 0:
        got = f"{run('algorithm.filter_groups.max_num_gen_batches')}, which V1 does not read: it has no upper limit"
        fix = "use algorithm.filter_groups.max_inflight_gen_batches for batches at a time"
        yield warns("algorithm.filter_groups.max_num_gen_batches", got, fix)


def _correction(run: RlSizes) -> Results:
    """rollout_corr_helper.py; the log-probs of the rollout engine are compared with the trainer's."""
    weights, rejection = run(f"{CORRECTION}.rollout_is"), run(f"{CORRECTION}.rollout_rs")
    bypass = run(f"{CORRECTION}.bypass_mode")
    if not run(f"{ROLLOUT}.calculate_log_probs"):
        where = f"{ROLLOUT}.calculate_log_probs"
        if bypass:
            yield fails(where, f"false, with {CORRECTION}.bypass_mode", "use true", "conflicting-settings")
        elif weights or rejection:
            yield fails(where, f"false: {CORRECTION} is then left out", "use true", "conflicting-settings")
    if weights is not None and weights not in ("token", "sequence"):  # :567
        yield RuleResult("FAIL", not_one_of(f"{CORRECTION}.rollout_is", weights, ("token", "sequence")))
    names = [name.strip() for name in rejection.split(",")] if isinstance(rejection, str) else []
    for name in names:
        if name not in REJECTION:  # :253
            yield RuleResult("FAIL", not_one_of(f"{CORRECTION}.rollout_rs", name, REJECTION))
    if weights is not None:
        yield from _bounds(run(f"{CORRECTION}.rollout_is_threshold"), f"{CORRECTION}.rollout_is_threshold", "2.0")
    threshold = run(f"{CORRECTION}.rollout_rs_threshold")
    if names and threshold is None:  # :868
        fix = "use 0.5_2.0" if any(name.endswith("k1") for name in names) else "use 0.01"
        yield fails(f"{CORRECTION}.rollout_rs_threshold", "not set, with rollout_rs", fix, "conflicting-settings")
    elif names:
        yield from _thresholds(names, str(threshold))
    if bypass and run(f"{CORRECTION}.loss_type") not in ("ppo_clip", "reinforce"):  # core_algos.py:2544
        found = run(f"{CORRECTION}.loss_type")
        yield RuleResult("FAIL", not_one_of(f"{CORRECTION}.loss_type", found, ("ppo_clip", "reinforce")))


def _thresholds(names: list[str], threshold: str) -> Results:
    """rollout_corr_helper.py:136-191: one threshold for all, or one for each."""
    specs, where = [spec.strip() for spec in threshold.split(",") if spec.strip()], f"{CORRECTION}.rollout_rs_threshold"
    if len(specs) not in (1, len(names)):
        yield fails(where, f"{len(specs)} thresholds for {len(names)} criteria", "use one, or one for each")
        return
    for name, spec in zip(names, specs * len(names) if len(specs) == 1 else specs, strict=False):
        if "_" in spec and not name.endswith("k1"):
            yield fails(where, f"{spec!r}, and {name} has one bound", f"use {spec.partition('_')[2]}")
        else:
            yield from _bounds(spec, where, "0.5_2.0" if name.endswith("k1") else "0.01")


def _bounds(threshold: Any, where: str, fix: str) -> Results:
    """rollout_corr_helper.py:93-127, 160-189: one number above 0, or lower_upper."""
    try:
        numbers = [float(part) for part in str(threshold).split("_", 1)]
    except ValueError:
        numbers = []
    if not numbers or numbers[0] <= 0 or numbers != sorted(numbers):
        yield fails(where, f"{threshold} is no number above 0, and no two as in 0.5_2.0", f"use {fix}")


def _skipping(run: RlSizes) -> Results:
    """skip/config.py: made of the config when training begins."""
    for part in ("rollout", "rollout_tq", "async_rollout"):
        action = run(f"skip.{part}.action", "cache")
        if action not in ("cache", "repeat"):
            yield RuleResult("FAIL", not_one_of(f"skip.{part}.action", action, ("cache", "repeat")))
