"""Document 003 ("Training Logs Enhancements"), character by character: each format with the item that it comes from."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from launcher.core.episode_record import EpisodeRecord, EpisodeTurn
from launcher.core.events import HeldOutEpisodes, Step, TrainingGroup
from launcher.core.rubric import Evaluation, evaluation_of
from launcher.core.state import RunState
from launcher.monitor.agents import detailed_lines, rubric_lines, saved_line, short_lines, trend_line, turn_table
from launcher.monitor.console import console_lines, screen_lines

N, RULE = 100, "─" * 80
FIRST = 0.5
"""Mean reward of the first evaluation; 78 of the rewards below are above it."""
LOW, HIGH = 0.28473, 0.87113
"""With 21 and 27 of them, and the others as they are, mean, median, deviation and ends are the document's."""


def first(count: int, n: int = N) -> tuple[float, ...]:
    return tuple(float(place < count) for place in range(n))


def example() -> HeldOutEpisodes:
    """100 episodes with the counts of S3-06: the first 85 are right, the last 5 say "I don't know"."""
    idk = tuple(float(place >= 95) for place in range(N))
    turns = [3] * 47 + [4] * 38 + [4] * 10 + [4, 4, 4, 4, 5]  # 293 turns of 85, and 21 of 5
    rewards = (1.5, *[0.85] * 50, *[HIGH] * 27, *[LOW] * 21, -1.2)
    facts = {
        "answer_correct": first(85), "attempted_answer": first(95), "returned_i_dont_know": idk,
        "ever_found_right_email": first(87), "ever_read_right_email": first(82),
        "num_searches": (*[3.0] * 45, *[2.0] * 55), "num_repeated_searches": first(15),
    }  # fmt: skip
    return HeldOutEpisodes(
        step=10, rewards=rewards, turns=tuple(turns), outcomes=("finished",) * N, facts=facts, seconds=234.5
    )


def found() -> Evaluation:
    made = evaluation_of(example(), FIRST)
    assert made
    return made


JSON = """{
  "step": 10,
  "accuracy": 0.85,
  "correct_answers": 85,
  "total_samples": 100,
  "attempted_answer": 95,
  "avg_reward": 0.723,
  "median_reward": 0.850,
  "std_reward": 0.312,
  "min_reward": -1.200,
  "max_reward": 1.500,
  "found_correct_email": 87,
  "read_correct_email": 82,
  "total_repeated_searches": 15,
  "total_unique_searches": 230,
  "total_searches": 245,
  "avg_turns_correct": 3.45,
  "avg_turns_idk": 4.20,
  "avg_search_attempts": 2.45,
  "num_idk": 5,
  "eval_time": 234.5,
  "beat_rate": 0.78
}
"""


def test_evaluation_file() -> None:
    """S3-03, S3-06: statistics of episodes, with the document's keys, their order and its digits. S3-12: the names that
    W&B shows are those of the metrics."""
    assert found().json == JSON
    names = "total_repeated_searches total_unique_searches total_searches avg_turns_correct avg_turns_idk"
    wanted = [*names.split(), "avg_search_attempts", "num_idk"]
    assert [f"{found().metrics[f'eval/{name}']:.4g}" for name in wanted] == [
        "15", "230", "245", "3.447", "4.2", "2.45", "5"
    ]  # fmt: skip


def test_beat_rate_is_the_share_above_the_mean_of_the_first_evaluation() -> None:
    """S3-06: the document does not define it. Of the first evaluation, it is the share above its own mean of 0.723."""
    made = [evaluation_of(example(), first) for first in (None, 0.86)]
    assert [each and each.beat_rate for each in made] == [0.78, 0.28]


def test_faults_are_no_samples_and_a_mean_of_nothing_is_null() -> None:
    event = example()
    rewards = tuple(math.nan if place >= 95 else reward for place, reward in enumerate(event.rewards))
    made = evaluation_of(replace(event, rewards=rewards))
    assert made and (made.total_samples, made.num_idk, made.avg_turns_idk) == (95, 0, None)
    assert '"avg_turns_idk": null' in made.json and "eval/avg_turns_idk" not in made.metrics
    assert "   Avg turns (I don't know): - turns (count: 0)" in rubric_lines(made)
    assert evaluation_of(replace(event, rewards=(math.nan,) * N)) is None
    assert evaluation_of(replace(event, facts={"found": first(3)})) is None, "another environment"


def test_lines_of_an_evaluation() -> None:
    """S3-05, S3-20."""
    assert "\n".join(rubric_lines(found())) == (
        "📊 Detailed Rubric Statistics:\n"
        "   Attempted answers: 95/100 (95.0%)\n"
        "   Found correct email: 87/100 (87.0%)\n"
        "   Read correct email: 82/100 (82.0%)\n"
        "   Repeated searches: 15 (total: 245, unique: 230)\n"
        "   Avg turns (correct): 3.45 turns\n"
        "   Avg turns (I don't know): 4.20 turns (count: 5)\n"
        "   Avg search attempts: 2.45\n"
        "   "
    )
    path = "outputs/grpo_masked/eval_logs/eval_step_0010.json"
    assert saved_line(path) == f"💾 Eval stats saved to: {path}"
    assert trend_line(found()) == "Step   10: Acc= 85.0%, Found=87/100, Read=82/100, Repeats=15"


def test_turn_table() -> None:
    """S3-01, S3-02. A rollout with fewer turns has empty cells, of which the document says nothing."""
    advantages = [[0.35, 0.42, 0.8, 1.2], [-0.2, -0.15, 0.3, 0.85], [0.15, 0.25, -0.3, -0.45]]
    assert "\n".join(turn_table(advantages)) == (
        f"{RULE}\n📊 Turn-by-Turn Advantage Table:\n{RULE}\n"
        "Rollout | Turn  1 | Turn  2 | Turn  3 | Turn  4 |\n"
        f"{RULE}\n"
        "    1  | +0.350 | +0.420 | +0.800 | +1.200 |\n"
        "    2  | -0.200 | -0.150 | +0.300 | +0.850 |\n"
        "    3  | +0.150 | +0.250 | -0.300 | -0.450 |\n"
        f"{RULE}"
    )
    assert turn_table([[0.5], [math.nan, 1.0]])[5:7] == ["    1  | +0.500 |        |", "    2  |        | +1.000 |"]


STEP = Step(
    step=10,
    metrics={
        "actor/grad_norm": 0.8234, "train/loss_tokens": 12_345.0, "actor/loss": 0.3456, "train/groups_kept": 6.0,
        "train/groups_filtered": 2.0, "train/num_early_exit": 18.0, "agent/episodes": 48.0, "timing_s/gen": 45.0,
        "timing_s/reward": 0.3, "timing_s/update_actor": 2.1, "perf/total_num_tokens": 45_678.0,
    },
)  # fmt: skip


def test_detailed_summary_of_a_step() -> None:
    """S3-07."""
    assert "\n".join(detailed_lines(STEP.metrics)) == (
        f"{RULE}\nSTEP PHASE 4: BACKPROPAGATION & OPTIMIZATION\n{RULE}\n"
        "✓ Grad norm (clipped): 0.8234\n"
        "✓ Tokens trained: 12,345\n"
        "✓ Total loss: 0.3456\n"
        "\n"
        "📊 Group Summary:\n"
        "  - Total groups: 8\n"
        "  - Groups kept for training: 6\n"
        "  - Groups filtered (low variance): 2\n"
        "  - Rollouts that finished early (didn't exhaust turns): 18/48\n"
        "  - Total rollout time: 45.3s\n"
        "  - Total training time: 2.1s\n"
        "  - Total tokens: 45,678\n"
        "  - Trainable tokens: 12,345 (27.0%)\n"
        f"{RULE}"
    )


@pytest.mark.parametrize(
    ("more", "rollouts", "groups"),
    [
        ({"agent/episodes": 24.0}, 3, "6/8 kept (2 filtered), 18/24"),
        ({"agent/episodes": 48.0}, 6, "6/8 kept (2 filtered), 18/48"),
        # two groups of faults alone, which are neither kept nor filtered
        ({"train/groups_filtered": 0.0, "agent/episodes": 24.0, "agent/prompts": 8.0}, 3,
         "6/8 kept (0 filtered), 18/24"),
    ],
)  # fmt: skip
def test_short_summary_of_a_step(more: dict[str, float], rollouts: int, groups: str) -> None:
    """S3-08. The document's own lines contradict each other: 3 rollouts for each of 8 queries are 24, and not 48."""
    assert short_lines(replace(STEP, metrics={**STEP.metrics, **more}), 200) == [
        "📊 Step 10/200",
        f"📊 Collecting {rollouts} rollouts for 8 queries...",
        f"  Groups: {groups} finished early",
    ]


def test_both_verbosities() -> None:
    """S3-13: VERBOSE=true shows the full summary. S3-21: a run without an environment has none of these lines."""
    state = RunState(step=10, steps=200)
    assert screen_lines(STEP, state)[1:] == short_lines(STEP, 200)
    assert screen_lines(STEP, state, verbose=True)[1:] == detailed_lines(STEP.metrics)
    assert console_lines(STEP, state, verbose=True)[-17:] == detailed_lines(STEP.metrics)
    single = replace(STEP, metrics={"actor/loss": 0.5})
    (line,) = screen_lines(single, state)
    assert screen_lines(single, state, verbose=True) == [line]


def test_groups_are_shown_where_all_is_wanted() -> None:
    """S3-01, S3-13: VERBOSE=true shows the rollouts of each logged group and the advantage of each of their turns."""
    turns = [[0.35, 0.42], [-0.2, None]]
    episodes = tuple(EpisodeRecord("finished", tuple(EpisodeTurn("x", advantage=x) for x in row)) for row in turns)
    group = TrainingGroup(
        step=3, group=2, data_source="d", prompt="which\nday", ground_truth="monday", responses=("a", "b"),
        scores=(1.0, -0.5), parts={}, advantages=(0.4, -0.2), episodes=episodes,
    )  # fmt: skip
    assert console_lines(group, RunState()) == []
    assert console_lines(replace(group, episodes=()), RunState(), verbose=True) == []
    assert console_lines(group, RunState(), verbose=True) == [
        "Group 2 of step 3: which day",
        "    1  reward +1.000, finished, 2 turns",
        "    2  reward -0.500, finished, 2 turns",
        *turn_table([[0.35, 0.42], [-0.2, math.nan]]),
    ]
