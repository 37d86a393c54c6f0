"""console.log is verl's log to everything that reads verl's logs."""

from __future__ import annotations

import math
import time

import pytest

from launcher.core.events import (
    Alert,
    Crashed,
    Ended,
    Event,
    Loaded,
    Restarted,
    Saved,
    Stalled,
    Started,
    Step,
    Waiting,
    WentOn,
)
from launcher.core.metrics import HeldOut
from launcher.core.numbers import compact, percent, span
from launcher.core.state import RunState, after
from launcher.core.verdict import RunVerdict
from launcher.monitor.console import (
    LinePrinter,
    ProgressTimer,
    clock,
    console_lines,
    date,
    number,
    progress_line,
    results_of,
    screen_lines,
    step_line,
    summary_line,
    waiting,
)

LOADED = {"rows": 60, "refused": 0, "val_rows": 0, "val_refused": 0, "steps_per_epoch": 7, "steps": 20}


def at(step: int, steps: int, elapsed: float, pace: float | None) -> RunState:
    marks = () if pace is None else ((step - 1, 0.0), (step, pace))
    return RunState(step=step, steps=steps, started_at=0.0, last_at=elapsed, marks=marks)


def test_a_step_is_verls_line() -> None:  # S0-05, S0-26, S2-27
    """Held-out scores have their older name, too: `grep val/test_score` finds them (S0-06, S0-24)."""
    metrics = {
        "training/global_step": 5.0, "critic/score/mean": 0.0234375, "timing_s/step": 41.01343672798248,
        "val-core/openai/gsm8k/reward/mean@1": 0.7338893100833965, "val-core/a b/reward/mean@8": 0.5,
        "val-core/a b/reward/best@8/mean": 1.0, "val-aux/a b/reward/std@8": 0.1, "val/loss": 2.0,
    }  # fmt: skip
    assert step_line(Step(step=5, metrics=metrics)) == (
        "step:5 - training/global_step:5 - critic/score/mean:0.0234375 - timing_s/step:41.01344"
        " - val-core/openai/gsm8k/reward/mean@1:0.7338893 - val/test_score/openai/gsm8k:0.7338893"
        " - val-core/a b/reward/mean@8:0.5 - val/test_score/a b:0.5"
        " - val-core/a b/reward/best@8/mean:1.0 - val-aux/a b/reward/std@8:0.1 - val/loss:2.0"
    )


GRPO = {
    "actor/loss": -0.12494, "actor/pg_loss": -0.125, "actor/entropy": 0.03211, "actor/kl_loss": 0.0078,
    "critic/advantages/mean": -1e-9, "critic/rewards/mean": 0.35309, "actor/grad_norm": 0.0993, "actor/lr": 9.8e-07,
}  # fmt: skip


@pytest.mark.parametrize(
    ("metrics", "line"),
    [
        (GRPO, "Step 100/10000 | Loss: -0.125 | Reward: 0.353 | KL: 0.0078 | LR: 9.8e-7"),
        ({"actor/loss": 0.234, "critic/rewards/mean": 0.856, "actor/reward_kl_penalty": 0.0012, "actor/lr": 1e-10},
         "Step 100/10000 | Loss: 0.234 | Reward: 0.856 | KL: 0.0012 | LR: 1e-10"),  # S1-30
        ({"train/loss": 2.5, "train/lr": 2e-5}, "Step 100/10000 | Loss: 2.5 | LR: 2e-5"),
        ({"actor/ppo_kl": 0.1, "actor/lr": 0.0}, "Step 100/10000 | LR: 0"),  # no KL to a reference
    ],
)  # fmt: skip
def test_a_step_has_a_short_line(metrics: dict[str, float], line: str) -> None:
    step = Step(step=100, metrics=metrics)
    assert summary_line(step, 10_000) == line
    assert console_lines(step, RunState(step=100, steps=10_000))[2:] == ([line] if line else [])


BEGUN = at(1, 2, 1.0, 1.0), " 50%|█████     | 1/2 [00:01<00:01, 1.00s/it"
PROGRESS = [
    (at(160, 320, 60.0, 1.0), {}, " 50%|█████     | 160/320 [01:00<02:40, 1.00s/it]"),
    (at(320, 320, 4.0, 0.0125), {}, "100%|██████████| 320/320 [00:04<00:00, 80.00it/s]"),
    (at(2, 4, 0.0, 0.0), {}, " 50%|█████     | 2/4 [00:00<?, ?s/it]"),  # a clock that does not advance
    (RunState(step=3), {}, "  0%|          | 3/0 [00:00<?, ?s/it]"),  # nobody has said how many steps
    (at(49, 320, 3967.0, 55.72), GRPO,  # S2-20, to the letter
     " 15%|█▌        | 49/320 [1:06:07<4:11:40, 55.72s/it, policy_loss=-0.1249, pg_loss=-0.1250, entropy=0.0321,"
     " kl_loss=0.00780, adv_mean=-0.0000, reward=0.3531, grad_norm=0.10]"),
    (BEGUN[0], {"train/loss": 2.30259, "train/grad_norm": 12.0}, f"{BEGUN[1]}, loss=2.3026, grad_norm=12.00]"),
    (BEGUN[0], {"actor/pg_loss": math.nan, "actor/grad_norm": math.inf}, f"{BEGUN[1]}, pg_loss=nan, grad_norm=inf]"),
    (BEGUN[0], {"actor/pg_loss": 171531792.0}, f"{BEGUN[1]}, pg_loss=1.715e+08]"),  # S4-02
    (BEGUN[0], {"actor/skipped_nonfinite": 1.0}, f"{BEGUN[1]}]"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "metrics", "line"), PROGRESS, ids=[line for *_, line in PROGRESS])
def test_progress(state: RunState, metrics: dict[str, float], line: str) -> None:
    assert progress_line(state, metrics) == f"Training Progress: {line}"


def test_clock_and_date() -> None:
    seconds = (0, 59.99, 60, 3599, 3600, 90061)
    assert [*map(clock, seconds)] == ["00:00", "00:59", "01:00", "59:59", "1:00:00", "25:01:01"]
    assert {date(seconds) for seconds in (None, -1.0, math.nan, math.inf, 1e300)} == {""}, "no calendar has these"


NUMBERS = [
    ("training/global_step", 7.0, "7"),  # counters are whole
    ("perf/total_num_tokens", 123456789.0, "123456789"),
    ("actor/lr", 1e-06, "1e-06"),  # all others as Python writes seven digits
    ("critic/score/mean", 2 / 3, "0.6666667"),
    ("actor/grad_norm", math.nan, "nan"),
    ("actor/grad_norm", -math.inf, "-inf"),
]


def test_numbers() -> None:
    assert [number(name, value) for name, value, _ in NUMBERS] == [text for *_, text in NUMBERS]
    values = (0.0, 0.123456, 9999.4, 12345.6, -1e-9, -1.013e-18, 999.6, math.nan, math.inf)  # for a screen
    assert [*map(compact, values)] == ["0", "0.123", "9,999", "12,346", "-1e-09", "0", "1,000", "nan", "inf"]
    assert (percent(20.43), span(-0.00334, 0.128), compact(0.7, sign=True)) == ("2,043%", "-0.00334–0.128", "+0.7")


STACK = "".join(f'  File "{number}.py", line 1 in f\n' for number in range(9))
LINES: list[tuple[Event, list[str]]] = [
    (Started(run="p/a", algorithm="GRPO", processes=2), ["run p/a: GRPO on 2 processes"]),
    (Loaded(**{**LOADED, "val_rows": 8}), ["data: 60 rows, 8 held out; 20 steps"]),
    (Loaded(**{**LOADED, "refused": 3, "val_refused": 1}), ["data: 60 rows, 4 refused; 20 steps"]),
    (Step(at=1.0, step=0, metrics={"val/loss": 2.0}), ["step:0 - val/loss:2.0"]),  # a validation is no progress
    (Step(at=1.0, step=10, metrics={}), ["step:10", "Training Progress:  50%|█████     | 10/20 [00:01<?, ?s/it]"]),
    (Saved(step=10, path="checkpoints/step_000010"), ["saved checkpoints/step_000010"]),
    (Alert(step=10, text="checkpoint not written"), ["alert at step 10: checkpoint not written"]),
    (Crashed(lines=("a", "b"), cause="configuration"), []),  # the end says why
    (Restarted(step=4, attempt=3, cause="killed", why="rank 0: killed"),
     ["restart 1: rank 0: killed; attempt 3 went back to step 4"]),
    (Stalled(step=4, rank=1, why="w", stack=STACK), ["stalled after step 4: w", *STACK.splitlines()[:5]]),
    (WentOn(step=4, after_s=34.4), ["continues after 34 s"]),
    (Ended(how="stopped", why="SIGTERM"), ["stopped: SIGTERM"]),
    (Ended(how="failed", why="exit code 9", verdict=RunVerdict("not learned", "1 updates are too few")),
     ["failed: exit code 9", "not learned: 1 updates are too few"]),
    (Ended(how="finished", why="step 9 is not saved; it fell", verdict=RunVerdict("harmed", "0.9, then 0.1: it fell")),
     ["harmed: 0.9, then 0.1: it fell", "finished: step 9 is not saved"]),
]  # fmt: skip


@pytest.mark.parametrize(("event", "lines"), LINES, ids=[type(event).__name__ for event, _ in LINES])
def test_what_an_event_says(event: Event, lines: list[str]) -> None:
    before = RunState(started_at=0.0, steps=20)
    assert console_lines(event, after(before, event)) == lines


def test_one_line_stays_one_line() -> None:
    """Whatever a name or a text holds: a data source comes from a data file."""
    for event in (
        Step(step=0, metrics={"val-core/x\nstep:3 - y/reward/mean@1": 1.0}),
        Alert(step=3, text="disk\r\nfull\u2028now"),
        Ended(how="failed", why="ValueError: a\nb"),
        Started(run="p/a\nstep:3 - ", algorithm="X", processes=1),
    ):
        (line,) = console_lines(event, RunState())
        assert line.splitlines() == [line] and not line.startswith("step:3 ")


def test_a_line_is_due_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at once, and after each line the seconds count anew."""
    now = [100.0]
    monkeypatch.setattr("launcher.monitor.console.time.monotonic", lambda: now[0])
    timer, due = ProgressTimer(), []
    for now[0] in (100.0, 104.9, 105.0, 109.9, 110.1):
        due.append(timer.due())
    assert due == [False, False, True, False, True]


def arith(step: int, value: float, low: float | None = None, high: float | None = None) -> HeldOut:
    return HeldOut(step, "val-core/arith/reward/mean@1", value, low, high)


FIRST, BEST, LAST = arith(0, 0.57, 0.53, 0.61), arith(20, 0.61, 0.57, 0.65), arith(60, 0.36, 0.32, 0.4)
LOSSES = {
    "first": HeldOut(0, "val/loss", 2.9),
    "best": HeldOut(4, "val/loss", 1.5),
    "last": HeldOut(4, "val/loss", 1.5),
}
RESULTS = [
    (RunState(), {}),
    (RunState(first=FIRST, best=FIRST, last=FIRST), {"held out": "arith 0.57 [0.53–0.61] at step 0"}),
    (RunState(first=FIRST, best=BEST, last=LAST),
     {"held out": "arith 0.36 [0.32–0.4] at step 60; 0.57 [0.53–0.61] at step 0; "
                  "best 0.61 [0.57–0.65] at step 20"}),
    (RunState(**LOSSES), {"held out": "val loss 1.5 at step 4; 2.9 at step 0; its best"}),  # type: ignore[arg-type]
    (RunState(learnt_from={"train/loss_tokens": (4536.0, 20), "train/end_token_share": (19.0, 20)}),
     {"learnt from": "4,536 tokens with a loss, 95% of the answers with a loss on their end"}),
    (RunState(learnt_from={"train/loss_tokens": (0.0, 4), "train/gradient_share": (1.0, 4),
                           "train/end_token_share": (0.0, 4)}),
     {"learnt from": "0 tokens with a loss, 25% of the groups with a gradient, 0% of the answers ended by themselves"}),
    (RunState(moved={"attention": 0.00123456, "mlp": 0.0, "norms": math.nan}),
     {"weights moved": "attention 0.123%, mlp 0%, norms nan%"}),
    (RunState(moved={"mlp": 1.2e-5}, learnt_from={"train/loss_tokens": (0.0, 4)}),
     {"learnt from": "0 tokens with a loss", "weights moved": "mlp 0.0012% by weight decay alone"}),
    (RunState(moved={"lora_A": 0.1, "lora_B": 0.52}), {"weights moved": "lora_A 10%, lora_B norm 0.52"}),
]  # fmt: skip


@pytest.mark.parametrize(("state", "results"), RESULTS)
def test_what_a_run_came_to(state: RunState, results: dict[str, str]) -> None:
    assert results_of(state) == results


def test_a_step_is_one_short_line_where_no_terminal_is() -> None:
    held = HeldOut(step=5, name="val-core/gsm8k/reward/mean@1", value=0.5, low=0.4, high=0.6)
    metrics = {"critic/score/mean": 0.25, "actor/entropy": 1.23456, "timing_s/step": 2.0, "perf/throughput": 9.0}
    state = RunState(step=5, steps=300, marks=((4, 0.0), (5, 2.0)), last=held)
    (line,) = screen_lines(Step(step=5, metrics=metrics), state)
    assert line.startswith("step 5/300: score 0.25, ") and "entropy 1.23" in line
    assert line.endswith("; held out gsm8k 0.5 [0.4–0.6]; 09:50 left")
    assert screen_lines(Started(run="p/r", algorithm="SFT", processes=1), state) == ["run p/r: SFT on 1 processes"]


WAITS = [
    (Waiting(at=100.0, text="reward my.py:3, row a:2", for_s=5.0), "reward my.py:3, row a:2, for 45 s"),
    (Waiting(at=100.0, text=""), ""),
    (Stalled(at=100.0, step=1, rank=None, why="nothing for 20 s", stack="", for_s=20.0),
     "nothing for 20 s, so far 60 s"),
    (Ended(at=100.0, how="stopped", why=""), ""),
]  # fmt: skip


@pytest.mark.parametrize(("event", "text"), WAITS)
def test_the_seconds_that_a_run_waits_go_on(event: Event, text: str) -> None:
    before = RunState(status="running", waits_for="" if isinstance(event, Stalled) else "a node", waits_since=9.0)
    assert waiting(after(before, event), 140.0) == text


def test_a_stall_is_printed_again(capsys: pytest.CaptureFixture[str]) -> None:
    printer, state = LinePrinter(), RunState(status="running", stalled="nothing", waits_since=time.time() - 100)
    for _ in range(3):
        printer.write(state, [], [])
    assert capsys.readouterr().out.count("stalled: nothing, so far 1") == 1
