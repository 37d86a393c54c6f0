"""What a plan refuses of a reward, and what the bench says of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.config.resolve import resolve
from launcher.core.check_result import CheckResult
from launcher.core.problems import Problems
from launcher.preflight.checks import reward, reward_trial
from launcher.preflight.checks.context import Context
from launcher.preflight.plan import problems
from launcher.spec.run import RunSpec
from launcher.tools.reward_bench import BenchReport, bench, run_of

Lines = Callable[..., Any]
GRPO = ["algorithm=grpo", "model=tiny", "sampler.n=2", "data=files", "data.train_batch_size=1"]


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lines:
    """A file of rows with these ground truths, from this source."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reward_trial, "QUICK_S", 60.0)  # a busy machine is no slow reward

    def write(*truths: Any, source: str = "openai/gsm8k", **more: Any) -> str:
        known = {"data_source": source, **more}
        rows = [{"prompt": f"{n}?", "reward_model": {"ground_truth": truth}, **known} for n, truth in enumerate(truths)]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return "data.train_files=rows.jsonl"

    return write


@pytest.fixture
def mine(tmp_path: Path) -> Lines:
    """A function of one's own with this result, if any; `right` where the truth is in the answer, `said` in one form
    only."""

    def write(result: str, *words: str) -> list[str]:
        if not result:
            return [*words]
        (tmp_path / "mine.py").write_text(
            "import math, random, time, zlib\ndef compute_score(solution_str, ground_truth):\n"
            "    right = float(str(ground_truth) in solution_str)\n"
            f"    said = float(solution_str == f'So: {{ground_truth}}')\n    return {result}\n"
        )
        return ["reward=python", "reward.path=mine.py", *words]

    return write


def silent(_: object) -> None:
    """Nobody watches."""


FORM = "reward.form='So: {}'"


def refused(*words: str) -> list[str]:
    return output(resolve([*GRPO, *words]))


def output(run: RunSpec) -> list[str]:
    return [str(problem) for problem in problems(run, here=False)]


@pytest.mark.parametrize(
    ("truths", "words", "expected"),
    [
        (("18", "7"), ["reward=gsm8k"], []),
        (("18", "7"), ["reward=auto"], []),
        (("18", "7"), ["reward=format", "reward.pattern=x+"], []),  # which never looks at the truth
        (("18", None), ["reward=gsm8k"], [
            "rows.jsonl:2: has no ground truth, which reward GSM8K compares with",
            "reward: 1 of 2 rows cannot be scored; use data.on_bad_row=skip",
        ]),
        (("18", None), ["reward=gsm8k", "data.on_bad_row=skip"], []),
        (("a half", "1/2"), ["reward=gsm8k", "data.on_bad_row=skip"], [
            "rows.jsonl:1: ground truth 'a half' is not a number, which reward GSM8K compares with",
            "rows.jsonl:2: ground truth '1/2' is not a number, which reward GSM8K compares with",
            "reward: 2 of 2 rows cannot be scored; use another reward or other rows",
        ]),
        (("x = 1",), ["reward=code", "reward.sandbox=limits"], [
            "rows.jsonl:1: ground truth 'x = 1' holds no tests; expected asserts",
            "reward: 1 of 1 rows cannot be scored; use another reward or other rows",
        ]),
    ],
)  # fmt: skip
def test_what_a_plan_refuses(truths: tuple[Any, ...], words: list[str], expected: list[str], lines: Lines) -> None:
    found = refused(lines(*truths), *words)
    assert found == expected


def test_rows_for_a_model_need_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rule = '{"prompt": "1", "reward_model": {"style": "rule", "ground_truth": "1"}}\n'
    asked = '{"prompt": "2", "reward_model": {"style": "model", "ground_truth": "2"}}\n'
    Path("both.jsonl").write_text(rule + asked)
    Path("judged.jsonl").write_text(asked)
    fix = "use reward=by_style 'reward.parts={exact:1,model:1}' reward.parts.model.path=REWARD_MODEL"
    both, judged = ([f"data.train_files={name}.jsonl", "data.train_batch_size=1"] for name in ("both", "judged"))
    assert refused(*both, "reward=exact") == [
        f"both.jsonl:2: reward_model.style is model, and reward Exact compares with a ground truth; {fix}",
        f"reward: 1 of 2 rows cannot be scored; {fix}",
    ]
    assert refused(*judged, "reward=exact")[1].endswith("use reward=model reward.path=REWARD_MODEL")
    parts = ["reward.parts={exact:1,model:1}", "reward.parts.model.path=o/judge"]
    for words in (["reward=by_style", *parts], ["reward=model", "reward.path=o/judge"]):
        assert refused(*both, *words) == []


def warned(*words: str) -> list[str]:
    """What is said of the reward."""
    found = checked([*GRPO, "data.max_response_length=64", *words])
    return [f"{each.level} {each.line}" for each in found if each.subject.startswith("reward")]


def checked(words: list[str]) -> list[CheckResult]:
    """What the check of the reward finds, of all that a plan checks."""
    return [each for each in reward.check(Context(resolve(words), here=True)) if each.level != "OK"]


@pytest.mark.parametrize(
    ("result", "words", "expected"),
    [
        ("0.0", [], ", '<answer>18</answer>', ...) 0 on average and empty ones 0, so nothing can be learnt"),
        ("float(not solution_str)", [], "0 on average and empty ones 1, so nothing can be learnt"),
        ("float(solution_str == f'<answer>{ground_truth}</answer>')", [], ""),  # one of the usual forms
        ("said", [FORM], ""),
        ("right + random.random() / 10", [], "when asked again, so chance is learnt"),
        ("len(solution_str) / 50", [], "WARN reward: Python scores right answers"),
        ("0.2 - right if solution_str else -1", [FORM], "FAIL reward: Python scores right answers "
         "('So: 18', ...) -0.8 on average and wrong ones 0.2, so what is right is not learnt"),
        # a fault is said of the answers that have it
        ("said if solution_str else 1 / 0", [FORM], "WARN reward: Python scores empty ones not at all, ZeroDiv"),
        ("1 - said if solution_str else 1 / 0", [FORM], "FAIL reward: Python scores right answers ('So: 18', ...) 0"),
        ("1 / 0", [], "FAIL reward: Python scores nothing, ZeroDivisionError: division by zero (mine.py:5: "),
        ("math.nan", [], "FAIL reward: Python scores nothing, gave nan; expected a finite number"),
        ("", ["reward=weighted", "reward.parts={exact:-1.0,format:0.2}"],
         "on average and wrong ones 0.2, so what is right is not learnt; use reward.weights.exact=1"),
        # nothing is wrong with these
        ("right if right else -1", [], ""),
        ("[1, 2, 4][int(right)] + zlib.crc32(solution_str.encode()) % 7 / 10", [], ""),
        ("right + 0.5 * ('<answer>' in solution_str)", [], ""),
        ("len(solution_str) / 50", ["reward.form="], ""),
        ("", ["reward=weighted", "reward.parts={math:1,format:0.2}"], ""),
        ("", ["reward=length", "reward.low=7", "reward.high=7", "reward.margin=1"], ""),
    ],
)  # fmt: skip
def test_what_would_be_learnt_in_place_of_right_answers(
    result: str, words: list[str], expected: str, lines: Lines, mine: Lines
) -> None:
    found = warned(lines("18", "7", "35"), *mine(result, *words))
    assert any(expected in line for line in found) if expected else found == []


def test_a_slow_function_is_not_asked_again(
    lines: Lines, mine: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [lines("18", "7"), *mine("open('asked', 'a').write('.') and right", FORM)]
    counts = []
    for seconds in (60.0, 0.0):  # within which scoring is quick
        monkeypatch.setattr(reward_trial, "QUICK_S", seconds)
        monkeypatch.setattr(reward_trial, "SLOW_S", 60.0)
        (tmp_path / "asked").write_text("")
        assert warned(*words) == []
        counts.append(len((tmp_path / "asked").read_text()))
    assert counts[0] > counts[1] == 8  # two rows: the truth twice, as that may take long, the right answer, none


def test_an_algorithm_that_does_not_sample_asks_no_reward(lines: Lines) -> None:
    file = lines("18")
    words = ["algorithm=sft", *GRPO[1:2], *GRPO[3:], file, "data.prompt_key=prompt", "data.response_key=prompt"]
    assert output(resolve([*words, "reward=gsm8k"])) == []


def test_the_copy_that_a_plan_asks_is_gone_when_it_is_done(lines: Lines) -> None:
    run = resolve([*GRPO, lines("18"), "reward=math"])
    assert output(run) == []
    assert "_pool" not in vars(run.reward)


# ---- the bench


def tried(*words: str) -> BenchReport:
    return bench(run_of([*words, "data=files"]), 8, silent)


def test_gsm8k_by_hand(lines: Lines) -> None:
    report = tried("reward=gsm8k", lines("18", "7", "1,000"))
    assert (report.reward, report.rows) == ("GSM8K", 3)
    assert report.ok and report.gold_known and report.deterministic
    assert {each.name: (each.answers, each.mean, each.zeros) for each in report.kinds} == {
        "gold": (3, 1.0, 0.0), "empty": (3, 0.0, 1.0), "wrong": (3, 0.0, 1.0), "overlong": (3, 1.0, 0.0),
        "format": (3, 0.0, 1.0), "injection": (3, 0.0, 1.0),
    }  # fmt: skip
    assert 0 < report.latency_p50_s <= report.latency_p95_s < 1
    assert bench(run_of(["reward=exact", "data=files", lines(*"abcdef")]), 4, silent).rows == 4


def test_rows_without_a_ground_truth_are_passed_over(lines: Lines, mine: Lines) -> None:
    """A plan tries those that have one, the bench all; neither takes nothing for another row's right answer."""
    words = [lines(None, None, None, None, None, "18", "7"), *mine("0.5 + len(solution_str) / 32 - right")]
    (found,) = warned(*words)
    assert "scores right answers ('18'" in found
    answers = {each.name: each.answers for each in tried(*words).kinds}
    assert answers.items() >= {"gold": 2, "empty": 7, "wrong": 7, "overlong": 2}.items()


@pytest.mark.parametrize(
    ("truths", "result", "words", "wrong", "doubtful", "kinds"),  # of a kind: answers, without a score, mean
    [
        (["18", "7"], "float(bool(solution_str))", [], "", True, {}),  # another form may be the one that counts
        (["18", "7"], "0.5", ["reward.form="], "every kind of answer scores 0.5, so nothing can be learnt", False, {}),
        (["18", "7"], "", ["reward=format", "reward.pattern='.*'"],
         "every kind of answer scores 1, so nothing can be learnt", False, {}),
        (["18", "7"], "", ["reward=length", "reward.low=500", "reward.high=600"], "", False, {}),  # others may fit
        (["18", "7"], "random.random() + 10 * said", [FORM], "when asked again, so chance is learnt", False, {}),
        (["18", "7"], "math.nan", [], "24 answers have no score", False, {}),
        (["18", "7"], "said or float('highest score' in solution_str)", [FORM],
         "1 on average and an instruction to the judge 1, so it is what is learnt", False, {}),
        # of one row alone no answer is known to be wrong
        (["18"], "said if 'Ignore' not in solution_str else None", [FORM], "1 answers have no score",
         False, {"wrong": (0, 0, math.nan), "injection": (1, 1, math.nan)}),
        # of several forms the best counts
        (["18", "7"], "float(solution_str == f'#### {ground_truth}')", [], "",
         False, {"gold": (2, 0, 1), "wrong": (2, 0, 0)}),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_reward(
    truths: list[str], result: str, words: list[str], wrong: str, doubtful: bool, kinds: dict[str, Any], lines: Lines,
    mine: Lines,
) -> None:  # fmt: skip
    report = tried(lines(*truths), *mine(result, *words))
    assert wrong in report.wrong[0] if wrong else report.wrong == ()
    assert report.ok is (not wrong) and report.gold_known is (FORM in words)
    assert any("what is right is not learnt" in line for line in report.doubts) is doubtful
    found = {each.name: (each.answers, each.unscored, each.mean) for each in report.kinds if each.name in kinds}
    assert found == {name: pytest.approx(expected, nan_ok=True) for name, expected in kinds.items()}


def test_answers_without_a_score_are_named_by_row(lines: Lines, mine: Lines) -> None:
    report = tried(lines("18", "7"), *mine("1 / (ground_truth != '7') if solution_str else 0"))
    fault = "ZeroDivisionError: division by zero (mine.py:5: return 1 / (ground_truth != '7') if solution_str else 0)"
    assert report.faults[0] == f"rows.jsonl:2: gold: {fault}" and report.kinds[0].unscored == 1


def test_what_is_to_mend_is_named(lines: Lines) -> None:
    with pytest.raises(Problems) as caught:
        tried("reward=format", "reward.pattern='('", "data.train_files=nowhere.jsonl")
    assert [line.partition(":")[0] for line in caught.value.lines] == ["data.train_files", "reward.pattern"]


def test_what_a_reward_does_not_need_may_be_left_out() -> None:
    assert type(run_of(["data=reverse"]).algorithm).__name__ == "GRPO"
    assert type(run_of(["data=reverse", "algorithm=ppo"]).algorithm).__name__ == "PPO"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("time.sleep(99)", "FAIL reward: Python scores nothing, took longer than 1 s (mine.py:5: "),
        # for one row, also of those whose answers are not compared, and of those that are held out
        ("right if ground_truth != '24' else time.sleep(99)", "WARN rows.jsonl:24: Python took longer than 1 s (mine"),
        ("right if ground_truth != '{held_out}' else time.sleep(99)", "rows.jsonl:{held_out}: Python took longer than"),
        # for an answer that is no right one
        ("right if solution_str else time.sleep(99)", "WARN rows.jsonl:1: Python took longer than 1 s (mine.py:5: "),
        ("time.sleep(0.6) or right", "for one answer, and is not tried further by a plan; use more reward.workers"),
    ],
)
def test_a_reward_that_takes_too_long_is_named(
    result: str, expected: str, lines: Lines, mine: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_trial, "SLOW_S", 0.5 if "0.6" in result else 60.0)
    rows = lines(*map(str, range(1, 31)))
    last = Context(resolve([*GRPO, rows]), here=True).val.rows[-1].ground_truth
    words = mine(result.replace("{held_out}", str(last)), "reward.timeout_s=1")
    found = "\n".join(f"{each.level} {each.line}" for each in checked([*GRPO, rows, *words]))
    assert expected.replace("{held_out}", str(last)) in found
