"""Environments of verifiers' template train, and score as its own evaluation does (`make test-verifiers`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from launcher.config.resolve import resolve
from launcher.core.episode_record import EpisodeTurn
from launcher.core.events import TrainingGroup
from launcher.core.problems import Problems
from launcher.environments.verifiers import VerifiersEnvironment, interpreter
from launcher.preflight.checks.environment import Played, Player
from launcher.spec.environment import Spoken, ToolCall
from launcher.text.calls import FORMS, read_plain
from tests.launch.conftest import events

PYTHON = interpreter("")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(PYTHON).is_file(), reason="verifiers has no environment: make test-verifiers"),
]
HERE = Path(__file__).parent
CALL = '<tool_call>{"name": "echoer_echo", "arguments": {"text": "%s"}}</tool_call>'
CALL_OF = '<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
ROLES = {"reverser": "agent", "echoer": "agent", "guesser": "player"}
Play = Callable[..., Played]


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three packages of `vf-init`, importable, with tasks of ours."""
    folder = tmp_path_factory.mktemp("packages")
    for name in ROLES:
        tool = ["--add-tool"] if name == "echoer" else []
        subprocess.run([str(Path(PYTHON).with_name("vf-init")), name, "--path", str(folder), *tool], check=True)
        package = folder / name / name
        (package / "taskset.py").write_text((HERE / "tasksets" / f"{name}.py").read_text())
    exported = "from guesser.taskset import GuesserEnv, GuesserTaskset\n\n__all__ = ['GuesserEnv', 'GuesserTaskset']\n"
    (folder / "guesser" / "guesser" / "__init__.py").write_text(exported)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(str(folder / name) for name in ROLES))
        patch.setenv("PATH", f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}")
        yield folder


@pytest.mark.parametrize("name", ROLES)
def test_a_run_has_the_scores_of_verifiers_own_evaluation(packages: Path, tmp_path: Path, name: str) -> None:
    turns, words = 1 if name == "reverser" else 2, [CALL % "ab", CALL % "b"] if name == "echoer" else []
    settings = f"""
        algorithm=grpo model=tiny model.chat=true engine.num_threads=1 reward=exact sampler.n=2
        environment=verifiers environment.id={name} environment.python={PYTHON} environment.max_turns={turns}
        environment.workers=1 environment.tool_timeout_s=120 environment.timeout_s=600
        data.train_batch_size=4 data.max_prompt_length=256 data.max_response_length=256
        trainer.total_training_steps=2 trainer.log_groups_freq=1 trainer.project_name=p trainer.experiment_name=run"""
    words_of_run = ["train", *settings.split(), f"model.words=[{','.join(map(repr, words))}]"]
    ran = subprocess.run(
        [sys.executable, "-m", "launcher", *words_of_run], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    groups = events(tmp_path / "runs" / "p" / "run", TrainingGroup)
    recorded = [
        (group.prompt, [_text(turn) for turn in episode.turns], score)
        for group in groups
        for episode, score in zip(group.episodes, group.scores, strict=True)
        if episode.outcome != "token-limit" or name == "reverser"
        if not any(" characters ...] " in _text(turn) for turn in episode.turns)  # what is logged of long ones is cut
    ]
    assert not any(episode.fault for group in groups for episode in group.episodes)
    assert len(recorded) >= 4, [episode.outcome for group in groups for episode in group.episodes]
    scores = _evaluated(tmp_path, name, turns, [(prompt, texts) for prompt, texts, _ in recorded])
    assert [score for *_, score in recorded] == pytest.approx(scores, abs=1e-6)
    assert len({*scores}) > 1
    if name == "echoer":
        assert any(turn.calls for group in groups for episode in group.episodes for turn in episode.turns)


def _text(turn: EpisodeTurn) -> str:
    """What was said; where tools were called, the calls alone, as only these are scored."""
    written = (CALL_OF.format(name=call.name, arguments=call.arguments) for call in turn.calls)
    return "".join(written) or turn.text


def _evaluated(folder: Path, name: str, turns: int, episodes: list[tuple[str, list[str]]]) -> list[float]:
    """Rewards of `vf-eval` for these episodes, each a prompt and the texts of its turns: a scripted model gives them
    to a rollout of that prompt."""
    played = dict[str, int]()

    def answer(session: str, messages: list[Mapping[str, Any]]) -> str:
        prompt = next(message["content"] for message in messages if message["role"] == "user")
        if session not in played:
            fit = [at for at, (of, _) in enumerate(episodes) if prompt in of and at not in played.values()]
            played[session] = fit[0] if fit else -1
        done = sum(message["role"] == "assistant" for message in messages)
        return episodes[played[session]][1][done] if played[session] >= 0 else ""

    most = max(sum(prompt == other for other, _ in episodes) for prompt, _ in episodes)
    with _model(answer) as address:
        options = f"""
            --client.base-url {address} --client.api-key-var NO_KEY --no-push --no-rich
            --env.{ROLES[name]}.harness.id null --env.{ROLES[name]}.runtime.type subprocess
            --env.{ROLES[name]}.max-turns {turns} -r {most} -o out --run.dir x -c 4"""
        command = ["vf-eval", name, *options.split()]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = dict[int, float]()
    for line in (folder / "out" / "x" / "traces.jsonl").read_text().splitlines():
        (trace,) = json.loads(line)["traces"]
        assert trace["ok"], trace["errors"]
        found[played[trace["id"]]] = sum(each["score"] * each["weight"] for each in trace["rewards"].values())
    return [found[at] for at in range(len(episodes))]


@contextmanager
def _model(answer: Callable[[str, list[Mapping[str, Any]]], str]) -> Iterator[str]:
    """A server that answers as a model of OpenAI's API."""
    lock, form = threading.Lock(), next(form for form in FORMS if form.name == "hermes")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                spoken = form.parse(answer(self.headers["X-Session-ID"], body["messages"]))
            calls = [
                {"index": at, "id": call.id, "type": "function",
                 "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
                for at, call in enumerate(spoken.calls)
            ]  # fmt: skip
            delta = {"role": "assistant", "content": spoken.content, **({"tool_calls": calls} if calls else {})}
            choice = {"index": 0, "delta": delta, "finish_reason": "tool_calls" if calls else "stop"}
            chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


@pytest.fixture
def play(packages: Path) -> Iterator[Play]:
    """Plays turns in an environment, on its first row."""
    opened = list[Any]()

    def played(turns: list[Spoken], **settings: Any) -> Played:
        words = [f"environment.{name}={value}" for name, value in settings.items()]
        fixed = ["algorithm=grpo", "model=tiny", "environment=verifiers", f"environment.python={PYTHON}"]
        run = resolve([*fixed, "environment.tool_timeout_s=120", "environment.workers=1", *words])
        opened.append(run.environment.sessions())
        row = next(iter(run.data.read("train", "prompts")))
        return Player(run.environment, opened[-1]).play(run.environment.prompt(row), turns)

    yield played
    for sessions in opened:
        sessions.close()


def test_an_error_of_verifiers_is_a_fault_and_never_a_score(play: Play) -> None:
    played = play([read_plain("a")], id="echoer", args="{taskset: {broken: true}}")
    assert (played.observations[-1].ended, played.final.reward) == ("environment-fault", None)
    assert "no route to the judge" in played.fault[0]


def test_an_episode_that_a_limit_of_ours_ends_is_scored_as_one_of_verifiers_limits(play: Play) -> None:
    """What follows the last turn is in no trace of verifiers."""
    call = Spoken("", "", (ToolCall("echoer_echo", {"text": "ab"}, "call00000"),))
    played = play([call, call], id="echoer")
    assert [message.content for seen in played.observations for message in seen.messages] == ["ab", "ab"]
    assert not played.observations[-1].ended and (played.final.reward, played.final.facts) == (0.5, {"calls": 1.0})


def test_what_cannot_be_loaded_is_said(packages: Path) -> None:
    with pytest.raises(Problems, match=r"environment\.id: no-such cannot be loaded: .*'no-such' not found"):
        VerifiersEnvironment(id="no-such", python=PYTHON).tools()
    with pytest.raises(Problems, match="has 2 agents"):
        VerifiersEnvironment(id="reverser", args={"id": "user-sim"}, python=PYTHON).tools()
