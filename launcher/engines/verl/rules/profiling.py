"""Profilers: what fails when the workers are started or make theirs. Numbers are lines of verl 0.9.1."""

from __future__ import annotations

from launcher.engines.verl.rules.facts import LaunchFacts, Results, RuleResult, fails
from launcher.engines.verl.rules.sections import not_one_of
from launcher.engines.verl.rules.settings import RlSizes

TOOLS = ("nsys", "npu", "torch", "torch_memory", "precision_debugger")


def profiling(run: RlSizes, facts: LaunchFacts) -> Results:
    tool, place = run("global_profiler.tool"), "global_profiler.global_tool_config.nsys"
    if tool is not None and tool not in TOOLS:  # profile.py:180: records nothing
        yield RuleResult("WARN", not_one_of("global_profiler.tool", tool, TOOLS))
    if tool != "nsys" or not run("global_profiler.steps"):
        return
    for name in ("controller_nsight_options", "worker_nsight_options"):  # main_ppo.py:86, trainer_base.py:296
        if run(f"{place}.{name}") is None:
            yield fails(f"{place}.{name}", "null, with tool=nsys", "leave it out")
    if facts.programs is not None and "nsys" not in facts.programs:
        got = "nsys, and there is no program of that name: Ray starts no worker with it"
        yield fails("global_profiler.tool", got, "install nsight-systems, or use torch", "not-installed")
