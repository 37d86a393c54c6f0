"""Environments for the tests of `rlrun env check`: one that does what its settings say, and others that are good."""

import itertools
import os  # noqa: F401  code of the settings uses it, as the next ones
import random  # noqa: F401
import threading
import time
from pathlib import Path
from typing import Literal

from launcher.spec.data import Message
from launcher.spec.environment import Final, Observation

numbers, lock = itertools.count(), threading.Lock()


def opens() -> bool:
    """Whatever fails in it is a False."""
    try:
        with Path(__file__).open():
            return True
    except OSError:
        return False


class Does:
    """Each setting is the code of a method. What is kept in `held` is of all episodes."""

    held = []

    def __init__(self, reset="", end="code", reward="self._right(text)", close=""):
        self._reset, self._end, self._reward, self._close = reset, end, reward, close

    def reset(self, row):
        self.truth = row.ground_truth or ""
        exec(self._reset)

    def _right(self, text):
        return float(bool(self.truth) and text == self.truth)

    def end(self, how: Literal["soon", "late"], code: int | None = None) -> str:
        return eval(self._end)

    def reward(self, episode):
        return eval(self._reward, globals(), {"self": self, "text": episode.turns[-1][0].content})

    def close(self):
        exec(self._close)


class Tools(Does):
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def look(self, word: str) -> str:
        """An unknown word is the policy's error."""
        return {"cat": "an animal"}[word]

    async def wait(self) -> str:
        return "waited"


class Blocks(Does):
    async def wait(self) -> str:
        time.sleep(2.3)
        return "waited"


class Scored:
    """The run's reward scores the last answer."""

    def reset(self, row):
        pass

    def double(self, x: float) -> float:
        return 2 * x


class Turns:
    """Answers turns itself."""

    def reset(self, row):
        self.left, self.truth = 2, row.ground_truth

    async def step(self, episode, answer):
        self.left -= 1
        if self.left:
            return Observation((Message("user", "once more"),), reward=0.25, state="first")
        return Observation(ended="finished")

    def reward(self, episode):
        return Final(0.5 + (episode.turns[-1][0].content == self.truth), parts={"short": 1.0}, facts={"words": 2.0})


class Hands(Does):
    """The answer is handed in by a tool, and a look at something counts, too."""

    def look(self, word: str) -> str:
        self.looked = True
        return word

    def hand_in(self, answer: str) -> str:
        self.handed_in = answer == self.truth
        return ""

    def reward(self, episode):
        return getattr(self, "handed_in", False) + 0.1 * getattr(self, "looked", False)
