"""Interface of engines: which processes train a RunSpec, and how their output is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self

from launcher.core.check_result import CheckResult
from launcher.core.events import INVALID, MARK, Alert, Event, from_line
from launcher.core.problems import Problem, Problems, short_repr
from launcher.spec.checkpoint_format import POLICY

if TYPE_CHECKING:
    from launcher.spec.algorithm import Algorithm, Kind, Need
    from launcher.spec.data import Row
    from launcher.spec.memory import Memory
    from launcher.spec.reward import Reward
    from launcher.spec.run import RunSpec


@dataclass(frozen=True)
class Process:
    """One process to start. Its standard output is written to `rank-<rank>.log`."""

    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    node: int = 0
    """Which of the plan's machines it runs on."""


@dataclass(frozen=True)
class Plan:
    """All processes of a run; rank 0 reports events and is on the first node."""

    processes: tuple[Process, ...]
    nnodes: int = 1
    """Machines that the processes are spread over evenly."""
    gpus: int = 0
    """GPUs of each process."""


@dataclass(frozen=True)
class RunFacts:
    """What a plan knows of a run before the start; None where something is not known."""

    folder: Path
    """Path that the run's folder will have."""
    here: bool
    """Whether the run is to start on this machine, so that what is missing here is a failure."""
    val_rows: int | None = None
    """Held-out rows that are short enough."""
    data_sources: frozenset[str] | None = None
    """Data sources of the training rows."""
    val_data_sources: frozenset[str] | None = None
    unlabelled: int = 0
    """Held-out rows without a ground truth."""
    example: Row | None = None
    """The first training row."""


class OtherNames(Protocol):
    """The names of another project that an engine takes as arguments beside ours."""

    @property
    def project(self) -> str:
        """Its key in the table of names."""

    def todays_name(self, key: str) -> str:
        """The name that a key of an older version has today; the key itself where none is known."""

    def known(self, arguments: Sequence[str], typed: Mapping[str, str]) -> list[bool]:
        """Whether the project has, or had, the key of each argument. `typed` are names and values of all arguments."""

    def pass_on(
        self, arguments: Sequence[str], data: Kind, typed: Mapping[str, str]
    ) -> tuple[list[str], list[Problem]]:
        """The arguments as they are passed on, each empty where the project does not have its key, and a problem for
        each of these. `data` is the kind of rows that the algorithm learns from."""


class Engine(ABC):
    """Subclass it, decorate with @settings, and name the class in conf/engine/<name>.yaml."""

    computes: ClassVar[frozenset[Need]] = frozenset()
    """What the engine can compute for an algorithm before the update."""
    reads: ClassVar[frozenset[Kind]] = frozenset()
    """Kinds of rows that the engine can train on."""
    opens_model: ClassVar[bool] = True
    """Whether `check` reads the model's files or the run's folder; it is skipped where those have problems."""
    splits_prompts: ClassVar[bool] = True
    """Whether each process gets whole prompts of a batch, so that their number has to divide the batch. If
    False, the engine itself checks how a batch is split."""
    splits_length: ClassVar[bool] = True
    """Whether prompt and answer of a demonstration have a limit each; otherwise their sum has one."""
    writes_by_turn: ClassVar[bool] = False
    """Whether it applies the chat template to each turn of a demonstration alone."""
    picks_tokenizer: ClassVar[bool] = False
    """Whether it loads the tokenizer by class (AutoTokenizer), which may split text otherwise than tokenizer.json."""
    validates_whole_batches: ClassVar[bool] = False
    """Whether held-out demonstrations that do not fill a batch are left out of the loss."""
    names: ClassVar[OtherNames | None] = None
    """Another project's names of settings that the engine takes beside ours."""
    equal_micro_batches: ClassVar[bool] = False
    """Whether all micro-batches of an update must have one size; then the largest that divides the update is used."""

    @property
    def renames_layers(self) -> bool:
        """Whether adapters are named by layers of the engine's own model, not by those of the checkpoint."""
        return False

    def supports(self, algorithm: Algorithm) -> list[Problem]:
        """Why it cannot train with this algorithm; empty where it can.

        Decided by what the algorithm needs, reads and defines, not by its name, so user-defined classes work as well.
        """
        name, engine, found = type(algorithm).__name__, type(self).__name__, list[Problem]()
        about = ("engine",)
        if missing := sorted(algorithm.needs - self.computes):
            got = f"{name} needs {', '.join(missing)}, which {engine} does not compute"
            found.append(
                Problem("algorithm", got, _one_of("one that needs only", self.computes), "not-supported", about)
            )
        if algorithm.data not in self.reads:
            got = f"{name} learns from {algorithm.data}, which {engine} does not read"
            found.append(Problem("algorithm", got, _one_of("one that learns from", self.reads), "not-supported", about))
        if "critic" in algorithm.needs and not algorithm.has_value_loss:
            got = f"{name} needs a critic and defines no value_loss"
            found.append(Problem("algorithm", got, "define value_loss in it", "not-supported"))
        return found

    def problems(self, run: RunSpec) -> list[Problem]:
        """Why it cannot train this run."""
        return self.supports(run.algorithm)

    def with_absolute_paths(self) -> Self:
        """The same engine with absolute paths, valid in any working folder."""
        return self

    def reward(self, run: RunSpec) -> Reward:
        """The run's reward, ready to score in this process, with its networks loaded."""
        return run.reward

    def cores(self) -> int:
        """CPU cores of each process; 0 is an equal share of all cores."""
        return 0

    def memory(self, run: RunSpec) -> Memory | None:
        """Estimated peak memory of each phase in the process that needs most; None where it is unknown."""
        return None

    def without_template(self) -> Literal["plain text", "fails", "another"]:
        """How it writes turns for a model without a chat template; `another` is a template that the run sets."""
        return "plain text"

    def check(self, run: RunSpec, facts: RunFacts) -> Iterable[CheckResult]:
        """The engine's own checks of a run before the start. May read files and call programs of this machine."""
        return ()

    def recover(self, folder: Path) -> list[int]:
        """Make checkpoints of what a killed process of the engine had saved in the run's folder; returns their steps.
        Called only by the run's one writer, before it looks for the checkpoint to resume from."""
        return []

    def write_policy(self, checkpoint: Path, target: Path) -> None:
        """Write the policy of a checkpoint that holds none in Hugging Face's layout (`checkpoint_format`) to the new
        folder `target`. Raises `Problems`."""
        got = f"has no folder `{POLICY}`, which every checkpoint of this engine has"
        raise Problems(Problem(checkpoint.name, got, "use another checkpoint", "bad-file"))

    @abstractmethod
    def plan(self, run: RunSpec, folder: Path, start: int = 0) -> Plan:
        """The processes that train `run` in its run folder, starting after step `start`; they write checkpoints as
        `core.checkpoints` describes. No side effects."""


def marked_events(line: str) -> Iterator[Event]:
    """The event on a line of rank 0, after a `MARK`; none on other lines."""
    _, mark, text = line.partition(MARK)  # a reward's output without a line end may precede the mark
    if not mark:
        return
    try:
        event = from_line(text)
    except INVALID:
        event = Alert(step=0, text=f"rank 0 reported what cannot be read: {short_repr(text)}")
    if event:
        yield event


def _one_of(what: str, known: Iterable[str]) -> str:
    return f"use {what} {', '.join(sorted(known)) or 'nothing'}"
