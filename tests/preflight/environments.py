"""Environments for the tests of `rlrun env check`: five good ones, and ten with a fault each."""

import itertools
import os
import random
import time
from pathlib import Path
from typing import Literal

from launcher.spec.data import Message
from launcher.spec.environment import Final, Observation

_numbers = itertools.count()


class Base:
    def reset(self, row):
        self.truth = row.ground_truth or ""

    def reward(self, episode):
        return float(bool(self.truth) and episode.turns[-1][0].content == self.truth)


# ---- good


class Adds(Base):
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b


class Looks(Base):
    """A tool that knows some words only: an unknown one is the policy's error."""

    def look(self, word: str) -> str:
        return {"cat": "an animal"}[word]


class Waits(Base):
    async def wait(self) -> str:
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
        self.left = 2

    async def step(self, episode, answer):
        self.left -= 1
        if self.left:
            return Observation((Message("user", "once more"),), reward=0.25, state="first")
        return Observation(ended="finished")

    def reward(self, episode):
        return Final(0.5, parts={"short": 1.0}, facts={"words": 2.0})


class Boxed(Base):
    """The right answer counts in its form alone; another one costs, and an empty one does not."""

    def reward(self, episode):
        text = episode.turns[-1][0].content
        return 1.0 if text == f"\\boxed{{{self.truth}}}" else -float(bool(text))


class Hands(Base):
    """The answer is handed in by a tool, and a look at something counts, too."""

    def reset(self, row):
        super().reset(row)
        self.looked = self.right = False

    def look(self, word: str) -> str:
        self.looked = True
        return word

    def hand_in(self, answer: str) -> str:
        self.right = answer == self.truth
        return ""

    def reward(self, episode):
        return self.right + 0.1 * self.looked


# ---- with a fault


class Shares(Base):
    """Its truth is that of the episode which began last."""

    def reset(self, row):
        type(self).truth = row.ground_truth


class Hides(Base):
    """Only a call with arguments that its schema takes gets there."""

    def end(self, how: Literal["soon", "late"], code: int | None = None) -> str:
        os._exit(code)


class Half(Base):
    def reward(self, episode):
        if episode.turns[-1][0].content == self.truth:
            return 1.0
        return None


class Forgets(Base):
    """Its state depends on how often it was made."""

    def reset(self, row):
        super().reset(row)
        self.state = str(next(_numbers))

    def add(self, a: int) -> int:
        return a


class Draws(Base):
    def draw(self) -> float:
        return random.random()


class Dies(Base):
    def end(self) -> str:
        os._exit(3)


class Hangs(Base):
    def hang(self) -> str:
        time.sleep(3600)


class Raises(Base):
    def reward(self, episode):
        return {}["no"]


class Leaks(Base):
    files = []

    def reset(self, row):
        super().reset(row)
        self.files.append(Path(os.devnull).open())  # noqa: SIM115  it is what leaks


class Grows(Base):
    held = []

    def reset(self, row):
        super().reset(row)
        self.held.append(bytearray(10**6))


class Swallows(Base):
    """Whatever fails in it is a 0."""

    def reset(self, row):
        self.truth = row.ground_truth

    def reward(self, episode):
        try:
            with Path(__file__).open():
                return 0.5
        except OSError:
            return 0.0


class Upside(Base):
    def reward(self, episode):
        return 1.0 - super().reward(episode)
