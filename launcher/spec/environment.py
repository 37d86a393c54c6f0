"""What an environment is: it answers the policy's turns until the episode ends, for one of the reasons of `Outcome`.

An environment runs in processes of its own, so that a hang, a crash or a leak there costs an episode, never a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from launcher.core.settings import AtLeastOne, Count, Positive, ReadOnlyWith, settings
from launcher.spec.data import Message, Row
from launcher.spec.part import Part

Outcome = Literal[
    "finished", "gave-up", "turn-limit", "token-limit", "tool-error", "environment-fault", "sampler-fault", "timeout"
]
"""Why an episode ended: the policy answered; it said that it cannot; it used all turns, or all tokens; it called a tool
in a way that ends the episode. The last three are not caused by the policy."""
TRUSTED: Mapping[Outcome, bool] = {
    "finished": True, "gave-up": True, "turn-limit": True, "token-limit": True, "tool-error": True,
    "environment-fault": False, "sampler-fault": False, "timeout": False,
}  # fmt: skip
"""Outcome -> whether the reward of such an episode measures the policy. A fault is never a score."""
EARLY: frozenset[Outcome] = frozenset({"finished", "gave-up", "tool-error"})
"""Outcomes before the limits of turns and tokens."""


@dataclass(frozen=True)
class ToolCall:
    """A tool that the policy calls."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True)
class Spoken:
    """A turn of the policy as an environment reads it."""

    text: str
    """The whole turn as it was sampled, without the token that ends it."""
    content: str
    """The text of the turn without reasoning and calls."""
    calls: tuple[ToolCall, ...] = ()
    unreadable: str = ""
    """Why what looks like a call cannot be read as one; empty where there is none."""
    cut: bool = False
    """Whether the token limit ended the turn."""
    thought: str = ""
    """The reasoning before the content."""


@dataclass(frozen=True)
class ToolUse:
    """One tool call with its result, as it is shown to people."""

    name: str
    arguments: str
    """The call's arguments as JSON."""
    result: str
    seconds: float
    error: str = ""


@dataclass(frozen=True)
class Observation:
    """The environment's answer to one turn of the policy."""

    messages: tuple[Message, ...] = ()
    """What the policy reads next (roles `tool` and `user`); none where the episode has ended."""
    ended: Outcome | None = None
    reason: str = ""
    """Why the episode ended, in words; never empty for a fault."""
    reward: float = 0.0
    """Process reward of this turn: its contribution to the goal."""
    state: str = ""
    """Equal texts are equal states of the environment after this turn, for credit by anchor states; empty where states
    are not compared."""
    uses: tuple[ToolUse, ...] = ()


@dataclass
class History:
    """One episode so far, as an environment sees it."""

    row: Row
    turns: list[tuple[Spoken, Observation]] = field(default_factory=list)
    outcome: Outcome | None = None


@dataclass(frozen=True)
class Final:
    """The environment's judgement of a whole episode."""

    reward: float | None = None
    """The episode's score; None where the run's reward scores the last answer."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Part of the reward -> its value."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Other counts of an episode, such as searches: evaluations report them, the reward does not contain them."""
    fault: str = ""
    """Why the reward could not be computed."""


class Session(ABC):
    """One episode of an environment, in one of its processes."""

    @abstractmethod
    def reset(self, row: Row) -> None:
        """Begin an episode of this row. The same row must give the same state."""

    @abstractmethod
    async def step(self, episode: History, answer: Spoken) -> Observation:
        """Answer a turn of the policy. `episode` holds the turns before it."""

    def schemas(self) -> list[Mapping[str, Any]]:
        """The schemas of its tools, as chat templates take them."""
        return []

    @property
    def state(self) -> str:
        """Equal texts are equal states, for credit by anchor states; empty where states are not compared."""
        return ""

    @property
    def facts(self) -> Mapping[str, float]:
        """Facts of the episode, where `reward` gives no `Final`."""
        return {}

    def reward(self, episode: History) -> float | Final | None:
        """The score of the whole episode; None where the run's reward scores the last answer."""
        return None

    def close(self) -> None:  # noqa: B027  most sessions hold no resources
        """Free what the episode holds."""


class Sessions(ABC):
    """Running episodes of one environment, each with a number that its caller chooses. No future raises: a failure is
    an `Observation` or a `Final` with a fault."""

    @abstractmethod
    def begin(self, number: int, row: Row) -> Future[Observation]:
        """Start an episode. The observation has no messages, as the prompt is known, and a fault where the episode
        cannot start."""

    @abstractmethod
    def step(self, number: int, spoken: Spoken) -> Future[Observation]:
        """The environment's answer to a turn of the policy."""

    @abstractmethod
    def end(self, number: int, outcome: Outcome) -> Future[Final]:
        """Judge the episode, and free its resources. To be called once for each episode that was begun, also after a
        fault."""

    @abstractmethod
    def close(self) -> None:
        """End all processes."""

    def starve(self) -> None:  # noqa: B027  not every environment can be starved
        """From now on let no file and no connection be opened where episodes run; those that need one must end with a
        fault. `rlrun env check` uses it."""

    def holds(self) -> Mapping[str, int]:
        """Resources of its processes: `bytes` of memory, open `files`, `threads` and `children`; and `silent_s`, the
        longest time in which one of them let no episode go on. Empty if unknown."""
        return {}


SEVERAL = ReadOnlyWith("several_turns", fix="environment=python", why="the environment has one turn")


@settings
class Environment(Part):
    """Subclass it, decorate with @settings, and name the class in conf/environment/<name>.yaml."""

    max_turns: Annotated[AtLeastOne, SEVERAL] = 8
    """Turns of the policy in an episode; the next one is not asked for."""
    system_prompt: Annotated[str, SEVERAL] = ""
    """Put before each prompt as the system's turn, where it has none of its own."""
    tool_timeout_s: Annotated[Positive, SEVERAL] = 30.0
    """Seconds of one call of a tool, after which the episode ends as a timeout, which is no score."""
    timeout_s: Annotated[Positive, SEVERAL] = 300.0
    """Seconds of the environment in an episode, without the time that the policy writes; then it ends as a fault."""
    max_result_characters: Annotated[AtLeastOne, SEVERAL] = 8_000
    """Of a tool's result; what is longer is cut, and the policy reads that it was."""
    concurrency: Annotated[AtLeastOne, SEVERAL] = 64
    """Tools that run at the same time in one process; the others wait."""
    workers: Annotated[AtLeastOne, SEVERAL] = 2
    """Processes that run episodes, per training process."""
    memory_gb: Annotated[Positive, SEVERAL] = 8.0
    """Address space of each of them, in GiB."""
    refills: Annotated[Count, SEVERAL] = 1
    """How often an episode that ended with a fault is sampled anew in its step, before it is left out."""
    on_fault: Annotated[Literal["shrink", "drop"], SEVERAL] = "shrink"
    """Where an episode is left out: `shrink` compares the others of its group without it, `drop` leaves out the
    group."""

    several_turns: ClassVar[bool] = True
    """Whether the environment answers the policy; otherwise the reward scores its only turn."""

    @property
    def scores(self) -> bool:
        """Whether it scores episodes itself, so that rows need no ground truth and the run's reward is not asked."""
        return False

    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The schemas of its tools as chat templates take them: {"type": "function", "function": {...}}."""
        return ()

    def prompt(self, row: Row) -> Row:
        """The row as the policy reads it: with a prompt and its tools. Equal for all episodes of the row."""
        return row

    def sessions(self) -> Sessions:
        """Start the processes in which its episodes run."""
        raise NotImplementedError(f"{type(self).__name__} has one turn")

    def session(self) -> Session:
        """A session for one episode; called in the environment's own processes."""
        raise NotImplementedError(f"{type(self).__name__} has one turn")


@settings
class Single(Environment):
    """A prompt and one answer to it: no environment."""

    several_turns = False


SINGLE = Single()
