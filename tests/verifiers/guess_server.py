"""A server of OpenEnv: `python guess_server.py PORT`. Its score is the share of the letter that was asked for."""

import sys
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

TURNS = 2


class GuessAction(Action):
    text: str


class GuessObservation(Observation):
    shown: str


class Guess(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int = 0, **more: Any) -> GuessObservation:
        self.letter, self.turns = "abcdef"[seed % 6], 0
        return GuessObservation(shown=f"write {self.letter} {seed}", done=False, reward=0.0)

    def step(self, action: GuessAction, **more: Any) -> GuessObservation:
        self.turns += 1
        score = action.text.count(self.letter) / len(action.text)
        return GuessObservation(shown="again", done=self.turns == TURNS, reward=score)

    @property
    def state(self) -> State:
        return State(step_count=self.turns)


app = create_app(Guess, GuessAction, GuessObservation, env_name="guess", max_concurrent_envs=256)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
