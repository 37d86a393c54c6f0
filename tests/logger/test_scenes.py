"""The code of the training guide, without its comments and with fewer steps: what each sink gets."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from launcher.logger import DualLogger
from launcher.views.record import read_record
from tests.logger.conftest import Scripts, Shared

QUICK = """
from training_platform.core.wandb_callback import init_logging
logger = init_logging(
    job_uuid="my-job-001",
    wandb_project="llm-training",
)
logger.log_metrics(step=100, metrics={"loss": 0.5, "reward": 0.8})
logger.finish()
"""
BOTH = """
import os
from training_platform.core.wandb_callback import DualLogger

JOB_UUID = os.environ.get("JOB_UUID", "local-grpo-test")
PLATFORM_URL = os.environ.get("PLATFORM_URL", "http://localhost:8000")
WANDB_PROJECT = os.environ.get("WANDB_PROJECT", "grpo-math")

logger = DualLogger(
    job_uuid=JOB_UUID,
    platform_url=PLATFORM_URL,
    platform_enabled=True,

    wandb_project=WANDB_PROJECT,
    wandb_run_name=f"qwen7b-grpo-{JOB_UUID[:8]}",
    wandb_entity=None,
    wandb_config={"model": "Qwen/Qwen2.5-7B-Instruct", "learning_rate": 1e-6, "batch_size": 1024, "rollout_n": 5},
    wandb_tags=["grpo", "math", "qwen2.5"],
    wandb_enabled=True,
)

total_steps = 10000
for step in range(total_steps):
    metrics = {
        "policy_loss": 0.5 - step * 0.00003,
        "reward_mean": 0.3 + step * 0.00005,
        "reward_std": 0.2,
        "kl_divergence": 0.01 + step * 0.000001,
        "entropy": 1.5 - step * 0.0001,
    }

    logger.log_metrics(
        step=step,
        metrics=metrics,
        epoch=step // 1000,
    )

    if step % 100 == 0:
        logger.log_gpu_usage(
            gpu_index=0,
            utilization=92.5,
            memory_used=65.0,
            memory_total=80.0,
            temperature=72.0,
        )

    if step > 0 and step % 500 == 0:
        eval_score = 0.35 + step * 0.00003
        checkpoint_path = f"checkpoints/step-{step}"

        logger.log_checkpoint(
            step=step,
            checkpoint_path=checkpoint_path,
            eval_results={"gsm8k": eval_score},
        )
        print(f"Step {step}: GSM8K = {eval_score:.2%}")

logger.log_summary({
    "best_gsm8k": 0.65,
    "best_step": 8500,
    "final_loss": 0.15,
    "total_tokens": 125_000_000,
})
logger.finish()
print("Training completed!")
"""
ONE = """
from training_platform.core.wandb_callback import DualLogger

logger = DualLogger(
    job_uuid="my-job",
    {which}
)

step, metrics = 1, {{"loss": 0.5}}
logger.log_metrics(step, metrics)
logger.finish()
"""
STEPS = 1001


def test_both_get_every_number_that_the_script_logs(scripts: Scripts, platform: Shared) -> None:
    ran = scripts.run(BOTH.replace("total_steps = 10000", f"total_steps = {STEPS}"))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.endswith("Training completed!\n")

    steps = platform.lines("local-grpo-test", "Step")
    trained = [node for node in steps if "actor/pg_loss" in node["metrics"]]
    assert [(node["step"], node["metrics"]) for node in trained] == [
        (step, {
            "actor/pg_loss": 0.5 - step * 0.00003, "critic/score/mean": 0.3 + step * 0.00005, "critic/score/std": 0.2,
            "actor/kl_loss": 0.01 + step * 0.000001, "actor/entropy": 1.5 - step * 0.0001,
            "training/epoch": step // 1000,
        })
        for step in range(STEPS)
    ]  # fmt: skip
    assert [(node["step"], node["metrics"]) for node in steps if node not in trained] == [
        (step, {"val-core/gsm8k/reward/mean@1": 0.35 + step * 0.00003}) for step in (500, 1000)
    ]
    saved = [(node["step"], node["path"]) for node in platform.lines("local-grpo-test", "Saved")]
    assert saved == [(500, "checkpoints/step-500"), (1000, "checkpoints/step-1000")]
    used = platform.lines("local-grpo-test", "Usage")
    assert len(used) == 11 and {(node["gpu_percent"], node["gpu_celsius"]) for node in used} == {(92.5, 72.0)}
    assert (used[0]["gpu_memory_bytes"], used[0]["gpu_memory_total_bytes"]) == (65_000_000_000, 80_000_000_000)
    state = read_record(platform.folder("local-grpo-test")).state
    assert (state.status, state.step, state.steps) == ("finished", STEPS - 1, STEPS - 1)

    ((init,),) = scripts.calls("init")
    named = {"project": "grpo-math", "name": "qwen7b-grpo-local-gr", "tags": ["grpo", "math", "qwen2.5"]}
    assert init.items() >= {**named, "entity": None}.items() and init["config"]["rollout_n"] == 5
    rows = [(more["step"], row) for row, more in scripts.calls("log")]
    assert [row["policy_loss"] for _, row in rows if "policy_loss" in row] == [0.5 - n * 0.00003 for n in range(STEPS)]
    assert (500, {"eval/gsm8k": 0.35 + 500 * 0.00003}) in rows
    assert sum("gpu/0/utilization" in row for _, row in rows) == 11
    summary = {"best_gsm8k": 0.65, "best_step": 8500, "final_loss": 0.15, "total_tokens": 125_000_000}
    assert [summary, {}] in scripts.calls("summary")
    assert scripts.calls("finish") == [[{"exit_code": 0}]]
    assert not any(platform.spool.rglob("*.jsonl")), "what has arrived is deleted"


def test_the_quick_start_and_either_sink_alone(scripts: Scripts, platform: Shared) -> None:
    quick = QUICK.replace(
        'wandb_project="llm-training",', f'wandb_project="llm-training", platform_url="{platform.url}",'
    )
    assert scripts.run(quick).returncode == 0
    assert [node["metrics"] for node in platform.lines("my-job-001", "Step")] == [
        {"train/loss": 0.5, "critic/score/mean": 0.8}
    ]
    assert len(scripts.calls("init")) == 1

    which = f'platform_url="{platform.url}",\n    wandb_enabled=False,  # 关闭 W&B'
    assert scripts.run(ONE.format(which=which)).returncode == 0
    assert len(platform.lines("my-job", "Step")) == 1 and len(scripts.calls("init")) == 1

    which = 'platform_enabled=False,  # 关闭平台\n    wandb_project="my-project",'
    assert scripts.run(ONE.format(which=which)).returncode == 0
    assert len(platform.lines("my-job", "Step")) == 1 and scripts.calls("init")[1][0]["project"] == "my-project"
    assert [{"loss": 0.5}, {"step": 1}] in scripts.calls("log")


def test_what_each_sink_gets_of_the_other_methods(scripts: Scripts, platform: Shared) -> None:
    ran = scripts.run(f"""
from launcher.logger import DualLogger
logger = DualLogger("{platform.job}", "{platform.url}")
logger.log_config({{"lr": 1e-6}})
logger.log_checkpoint(7, "a/b", {{"gsm8k": 0.5}})
logger.log_status("failed", "no more room")
logger.finish()
""")
    assert ran.returncode == 0
    assert scripts.calls("config") == [[{"lr": 1e-6}, {}]]
    ((alert,),) = scripts.calls("alert")
    assert (alert["title"], alert["text"], alert["level"]) == ("failed", "no more room", "ERROR")
    (alert,) = platform.lines(platform.job, "Alert")
    assert (alert["text"], alert["level"]) == ("failed: no more room", "critical")
    (ended,) = platform.lines(platform.job, "Ended")
    assert (ended["how"], ended["why"]) == ("failed", "no more room")
    assert "lr" not in platform.folder(platform.job).events.read_text(), "the settings are W&B's"


TRACK = [sys.executable, "-m", "launcher", "track"]


def test_verl_is_followed_by_its_log(scripts: Scripts, platform: Shared) -> None:
    """The console log and what the file logger writes, while they grow, until the command gets a signal."""
    log, job = scripts.folder / "train.log", "job-1700000000"
    environment, pipes = platform.environment(JOB_UUID=job), {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    values = [(step, {"actor/pg_loss": 0.5**step, "critic/score/mean": step / 4}) for step in (1, 2)]
    lines = [
        " - ".join([f"step:{step}", *(f"{name}:{value}" for name, value in metrics.items())]) + "\n"
        for step, metrics in values
    ]
    log.write_text(lines[0])
    with subprocess.Popen([*TRACK, str(log), "-f"], env=environment, text=True, **pipes) as track:
        for number, more in enumerate(("", lines[1]), start=1):
            with log.open("a") as file:
                file.write(more)
            while len(platform.lines(job, "Step")) < number:
                assert track.poll() is None
                time.sleep(0.05)
        track.send_signal(signal.SIGTERM)
        output = track.communicate()[0]
    assert track.returncode == 0, output
    assert [(node["step"], node["metrics"]) for node in platform.lines(job, "Step")] == values

    rows = [{"step": step, "data": {"actor/pg_loss": step / 3}} for step in (1, 2)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [*TRACK, str(log), "--job", "files", "--platform-url", platform.url]
    subprocess.run(command, env=platform.environment(), check=True)
    assert [node["metrics"] for node in platform.lines("files", "Step")] == [row["data"] for row in rows]

    state = scripts.folder / "trainer_state.json"
    state.write_text('{"log_history": [{"loss": 0.5, "step": 5}]}')
    command = [*TRACK, str(state), "--job", "state", "--platform-url", platform.url]
    subprocess.run(command, env=platform.environment(), check=True)
    assert [node["step"] for node in platform.lines("state", "Step")] == [5]
    refused = subprocess.run([*command, "-f"], env=platform.environment(), capture_output=True, text=True)
    assert refused.returncode == 2 and "cannot be followed" in refused.stderr


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [
        (["--job", "late", "--platform-url", "http://127.0.0.1:1"], 1, ["1 steps of", "run the same command again"]),
        (["--job", "../x"], 2, ["--job: got '../x'"]),
        ([], 2, ["--to: is missing"]),
    ],
)
def test_a_log_that_does_not_arrive_or_has_no_job_is_no_success(
    words: list[str], code: int, printed: list[str], scripts: Scripts, platform: Shared
) -> None:
    (log := scripts.folder / "a.log").write_text("step:1 - actor/pg_loss:0.5\n")
    environment = platform.environment(RLRUN_FINISH_S="0.5", JOB_UUID="")
    ran = subprocess.run([*TRACK, str(log), *words], env=environment, capture_output=True, text=True)
    assert (ran.returncode, "reported" in ran.stdout) == (code, False)
    assert all(text in ran.stdout + ran.stderr for text in printed)


def test_a_logger_needs_a_job_that_can_be() -> None:
    with pytest.raises(ValueError, match="job_uuid: got"):
        DualLogger("../x")
