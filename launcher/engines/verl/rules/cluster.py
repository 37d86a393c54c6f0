"""What Ray, the packages and the checkpoint of a run need, and where verl waits for ever instead of failing.

Numbers are lines of verl 0.9.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from launcher.core.problems import short_repr
from launcher.engines.verl.rules.facts import LaunchFacts, Results, RuleResult, fails, warns
from launcher.engines.verl.rules.sections import not_one_of
from launcher.engines.verl.rules.settings import ACTOR, MODEL, ROLLOUT, RlSizes, engine_of

CPUS_PER_GPU = 3
"""A bundle of a placement group (single_controller/ray/base.py:146)."""
LOGGERS = (
    "console", "wandb", "mlflow", "swanlab", "vemlp_wandb", "tensorboard", "clearml", "trackio", "file", "rl_insight",
    "tracking",
)  # fmt: skip
LOGGER_PACKAGES = {name: name for name in ("wandb", "mlflow", "swanlab", "clearml", "trackio", "tensorboard")} | {
    "tracking": "wandb",
    "vemlp_wandb": "volcengine_ml_platform",
    "rl_insight": "rl_insight",
}
VOLCENGINE = ("VOLC_ACCESS_KEY_ID", "VOLC_SECRET_ACCESS_KEY", "MLP_TRACKING_REGION")
"""Environment variables of the logger vemlp_wandb (tracking.py:159)."""
STORAGES = ("SimpleStorage", "MooncakeStore")
RAY_INIT = (
    "address", "num_cpus", "num_gpus", "resources", "labels", "object_store_memory", "local_mode",
    "ignore_reinit_error", "include_dashboard", "dashboard_host", "dashboard_port", "job_config", "configure_logging",
    "logging_level", "logging_format", "logging_config", "log_to_driver", "namespace", "runtime_env",
    "enable_resource_isolation", "cgroup_path", "system_reserved_cpu", "system_reserved_memory", "proxy_server_url",
    "object_spilling_directory", "storage", "allow_multiple",
)  # fmt: skip
"""Arguments of ray.init, beside those that begin with _."""
MODULES = (
    "trainer.checkpoint_callback_class", f"{MODEL}.external_lib", f"{ROLLOUT}.agent.agent_loop_manager_class",
    f"{ROLLOUT}.checkpoint_engine.custom_backend_module", f"{ROLLOUT}.checkpoint_manager_class",
)  # fmt: skip
"""Settings that name a module of the user's, which the workers import."""
WANDB_REFUSES = "/\\#?%:"
ENGINE_PACKAGES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt_llm"}
TRAINER_PACKAGES = {"megatron": "megatron", "veomni": "veomni", "torchtitan": "torchtitan"}
SENDERS = {"nccl": "cupy", "nixl": "nixl", "mooncake": "mooncake", "kimi_ckpt_engine": "checkpoint_engine"}
"""What sends weights to rollout engines on GPUs of their own, and the package that it needs."""
EXTRA = {
    "cupy": "cupy-cuda12x",
    "mooncake": "mooncake-transfer-engine",
    "checkpoint_engine": "checkpoint-engine",
    "transfer_queue": "TransferQueue",
    "flash_attn": "flash-attn",
    "megatron": "megatron-core",
}
"""The name on the package index, where it is another than that of the import."""


def cluster(run: RlSizes, facts: LaunchFacts) -> Results:
    pools = _pools(run)
    yield from visible(run, facts)
    yield from _gpus(run, facts, pools)
    yield from _cpus(run, facts, pools)
    yield from _packages(run, facts)
    yield from loggers(run, facts)
    yield from _checkpoint(run, facts)
    yield from _services(run)


def _pools(run: RlSizes) -> list[tuple[str, int, int]]:
    """Setting, GPUs per node and nodes of each pool: each node of one is a placement group (base.py:160)."""
    pools = [("trainer.n_gpus_per_node", int(run("trainer.n_gpus_per_node")), int(run("trainer.nnodes")))]
    more = [("reward.reward_model", run.reward_model and run("reward.reward_model.enable_resource_pool"))]
    more.append(("distillation", run("distillation.enabled")))
    more.append((ROLLOUT, run.v1 and run.mode == "separate_async"))
    for place, applies in more:
        gpus, nodes = run(f"{place}.n_gpus_per_node") or 0, run(f"{place}.nnodes") or 0
        if applies and gpus > 0 and nodes > 0:
            pools.append((f"{place}.n_gpus_per_node", int(gpus), int(nodes)))
    return pools


def visible(run: Any, facts: LaunchFacts) -> Results:
    """base.py:237, and torch.cuda.set_device in torchrun's processes."""
    if facts.visible_gpus is not None and run("trainer.nnodes") == 1 and facts.visible_gpus < run.gpus:
        got = f"{run.gpus} GPUs, and CUDA_VISIBLE_DEVICES shows {facts.visible_gpus} of this machine's"
        yield fails("trainer.n_gpus_per_node", got, [facts.visible_gpus] if facts.visible_gpus else "", "not-enough")


def _gpus(run: RlSizes, facts: LaunchFacts, pools: list[tuple[str, int, int]]) -> Results:
    """base.py:237 compares the sum only, and then waits for nodes that are large enough."""
    if facts.gpus_per_node is None:
        return
    for where, gpus, _ in pools:
        if gpus > facts.gpus_per_node:
            got = f"{gpus} GPUs of one node, and nodes have {facts.gpus_per_node}: verl waits for ever"
            yield fails(where, got, [facts.gpus_per_node] if facts.gpus_per_node else "", "not-enough")
    free = [facts.gpus_per_node] * (facts.nodes or 1)
    if facts.nodes is None:
        return
    for where, gpus, nodes in sorted(pools, key=lambda pool: -pool[1]):
        fitting = sum(room >= gpus for room in free)
        if gpus <= facts.gpus_per_node and fitting < nodes:
            place = where.replace("n_gpus_per_node", "nnodes")
            got = f"{nodes} nodes with {gpus} free GPUs, and there are {fitting}"
            fewer = [fitting] if fitting and where.startswith("trainer.") else "use more nodes"
            yield fails(place, got, fewer, "not-enough")
        for index in sorted(range(len(free)), key=free.__getitem__):
            if nodes and free[index] >= gpus:
                free[index], nodes = free[index] - gpus, nodes - 1


def _cpus(run: RlSizes, facts: LaunchFacts, pools: list[tuple[str, int, int]]) -> Results:
    """A placement group that no node can hold, or an actor without a CPU, makes Ray wait for ever."""
    per_node = max(gpus for _, gpus, _ in pools) * CPUS_PER_GPU
    gpus = sum(gpus * nodes for _, gpus, nodes in pools)
    units = int(run("transfer_queue.backend.SimpleStorage.num_data_storage_units") or 0) + 1 if run.v1 else 0
    whole = CPUS_PER_GPU * gpus + units + 1
    parts = f"{CPUS_PER_GPU} for each of {gpus} GPUs" + (f", {units} for TransferQueue" if units else "") + ", 1 more"
    limit = run("ray_kwargs.ray_init.num_cpus")
    if limit is not None and limit < whole and run("trainer.nnodes") == 1:
        got = f"{limit} CPUs are fewer than {whole} ({parts}): verl waits for ever"
        yield fails("ray_kwargs.ray_init.num_cpus", got, [whole], "not-enough")
    there = run("ray_kwargs.ray_init.num_gpus")
    if there is not None and there < gpus and run("trainer.nnodes") == 1:  # single_controller/ray/base.py:237
        yield fails("+ray_kwargs.ray_init.num_gpus", f"{there} GPUs are fewer than {gpus}", [gpus], "not-enough")
    if facts.cpus_per_node is None or limit is not None:
        return
    nodes = facts.nodes or int(run("trainer.nnodes"))
    there = facts.cpus_per_node * nodes
    if facts.cpus_per_node < per_node:
        got = f"{facts.cpus_per_node} CPUs of a node are fewer than {per_node} ({CPUS_PER_GPU} for each GPU)"
        fewer = facts.cpus_per_node // CPUS_PER_GPU
        fix = f"use {f'{fewer} GPUs of a node, or ' if fewer else ''}nodes with {per_node} CPUs"
        yield fails("trainer.n_gpus_per_node", f"{got}: verl waits for ever", fix, "not-enough")
    elif there < whole:
        got = f"{there} CPUs are fewer than {whole} ({parts}): verl waits for ever"
        few = there - CPUS_PER_GPU * gpus - 2
        where = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
        if run.v1 and few >= 1:
            yield fails(where, got, [few], "not-enough")
        else:
            fix = f"use +ray_kwargs.ray_init.num_cpus={whole} on one node" if nodes == 1 else f"use {whole} CPUs"
            yield fails("cluster", got, fix.replace("+ray", "ray"), "not-enough")


def _packages(run: RlSizes, facts: LaunchFacts) -> Results:
    """What is imported only when a worker starts."""
    if facts.packages is None:
        return
    needed = dict.fromkeys(("cachetools", "fastapi", "uvicorn"), "main_ppo")
    if run.v1:
        needed["transfer_queue"] = "trainer.use_v1"
    if (sender := run(f"{ROLLOUT}.checkpoint_engine.backend")) in SENDERS:
        needed[SENDERS[sender]] = f"{ROLLOUT}.checkpoint_engine.backend={sender}"
    name = run(f"{ROLLOUT}.name")
    if name in ENGINE_PACKAGES:
        needed[ENGINE_PACKAGES[name]] = f"{ROLLOUT}.name={name}"
    kind = engine_of(run(ACTOR))[0]
    if kind in TRAINER_PACKAGES:
        needed[TRAINER_PACKAGES[kind]] = f"model_engine={kind}"
    if run(f"{MODEL}.use_liger"):
        needed["liger_kernel"] = f"{MODEL}.use_liger"
    if kind == "fsdp" and run.lora_rank > 0:
        needed["peft"] = f"{MODEL}.lora_rank"
    if (backend := run(f"{ROLLOUT}.trace.backend")) in ("mlflow", "weave"):
        needed[backend] = f"{ROLLOUT}.trace.backend"
    if not run("reward.custom_reward_function.path") and facts.data_sources:  # reward_score/__init__.py
        if "hiyouga/geometry3k" in facts.data_sources:
            needed["mathruler"] = "the reward of hiyouga/geometry3k"
        if any(source.startswith("numina_") for source in facts.data_sources):
            needed["pylatexenc"] = "the reward of numina_*"
    attention = (run(f"{MODEL}.override_config") or {}).get("attn_implementation", "flash_attention_2")
    if kind == "fsdp" and str(attention).startswith("flash_attention"):  # workers/config/model.py:185
        needed["flash_attn"] = "attention; or use +actor_rollout_ref.model.override_config.attn_implementation=sdpa"
    if run.needs_critic and engine_of(run("critic"))[0] == "fsdp":  # utils/model.py:649, whatever is overridden
        needed["flash_attn"] = "the critic, which takes no other attention"
    yield from not_installed(needed, facts)
    yield from modules(run, MODULES, facts)


def modules(run: Any, keys: Iterable[str], facts: LaunchFacts) -> Results:
    """Modules that settings name, one or several, and that the environment of verl does not have."""
    for key in keys:
        named = run(key)
        for module in map(str, named if isinstance(named, list) else [named or ""]):
            if module and "/" not in module and facts.packages and module.partition(".")[0] not in facts.packages:
                got = f"{module} cannot be imported beside verl"
                yield warns(key, got, "install it there, or add its folder to PYTHONPATH", "not-installed")


def not_installed(needed: Mapping[str, str], facts: LaunchFacts) -> Results:
    """Packages that the environment of verl lacks, of those that are needed by something."""
    for package, reason in sorted(needed.items()):
        if facts.packages is not None and package not in facts.packages:
            fix = f"install {EXTRA.get(package, package)} beside verl"
            yield fails(f"package {package}", f"not installed; needed by {reason}", fix, "not-installed")


def loggers(run: Any, facts: LaunchFacts) -> Results:
    """tracking.py:71: names, packages and accounts of `trainer.logger`."""
    given = run("trainer.logger")
    if given is None:
        yield fails("trainer.logger", "null", "use [console]")
    names = [given] if isinstance(given, str) else list(given or ())
    project = str(run("trainer.project_name"))
    if "wandb" in names and (wrong := sorted({*project} & {*WANDB_REFUSES})):
        got = f"{short_repr(project)}: wandb takes no {' or '.join(wrong)} in it"
        yield fails("trainer.project_name", got, f"use {''.join('-' if c in wrong else c for c in project)}")
    for name in names:
        if name not in LOGGERS:
            yield RuleResult("FAIL", not_one_of("trainer.logger", name, LOGGERS))
    needed = {LOGGER_PACKAGES[name]: f"trainer.logger={name}" for name in names if name in LOGGER_PACKAGES}
    yield from not_installed(needed, facts)
    missing = [name for name in VOLCENGINE if facts.variables is not None and name not in facts.variables]
    if "vemlp_wandb" in names and missing:
        yield fails("trainer.logger", f"vemlp_wandb, without {', '.join(missing)}", "use [console], or set them")
    if facts.variables is None or not {"wandb", "tracking"} & {*names}:
        return
    if not {"WANDB_API_KEY", "WANDB_MODE", "WANDB_DISABLED"} & facts.variables:
        got = "wandb, without WANDB_API_KEY or WANDB_MODE: the run asks for a key, or fails"
        yield warns("trainer.logger", got, "use [console], or set WANDB_MODE=offline")


def _checkpoint(run: RlSizes, facts: LaunchFacts) -> Results:
    """Every rank reads the file that its rank wrote: model_world_size_W_rank_R.pt."""
    resumes = run("trainer.resume_mode") in ("auto", "resume_path")
    if resumes and facts.checkpoint_world is not None and facts.checkpoint_world != run.gpus:
        got = f"the checkpoint is of {facts.checkpoint_world} processes, and the run has {run.gpus}"
        nodes = int(run("trainer.nnodes"))
        per_node, most = facts.checkpoint_world // nodes, facts.gpus_per_node or facts.checkpoint_world
        fits = facts.checkpoint_world % nodes == 0 and per_node <= most
        fix = [per_node] if fits else "use as many GPUs on more nodes, or trainer.resume_mode=disable"
        yield fails("trainer.n_gpus_per_node", got, fix, "conflicting-settings")
    folder = str(run("trainer.default_local_dir") or "")
    if int(run("trainer.nnodes")) > 1 and not PurePath(folder).is_absolute() and "://" not in folder:
        got = f"{folder} is in each node's own working directory: no resume"
        yield warns("trainer.default_local_dir", got, "use a whole path that all nodes share")
    if facts.architectures is not None and len(facts.architectures) != 1:  # workers/config/model.py:226
        got = f"config.json names {len(facts.architectures)} architectures"
        yield fails(f"{MODEL}.path", got, "use a model with one", "not-supported")


def _services(run: RlSizes) -> Results:
    """Ray and TransferQueue, which V1 starts with the run (main_ppo.py:60, 137)."""
    place = "transfer_queue.backend"
    storage = run(f"{place}.storage_backend")
    if run.v1 and storage not in STORAGES:
        yield RuleResult("FAIL", not_one_of(f"{place}.storage_backend", storage, STORAGES))
    for name, value in (("num_data_storage_units", 8), ("total_storage_size", 100000)):
        where = f"{place}.SimpleStorage.{name}"
        if run.v1 and storage == "SimpleStorage" and (run(where, 1) or 0) < 1:
            yield fails(where, f"{run(where)}: rows have no place", f"use {value}")
    for name in run("ray_kwargs.ray_init") or {}:
        if name not in RAY_INIT and not name.startswith("_"):
            yield RuleResult("FAIL", not_one_of(f"ray_kwargs.ray_init.{name}", name, RAY_INIT))
