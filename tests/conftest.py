"""What several rooms of the tests need: the real command line, a small run, a full disk, a signal at a known moment."""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, chdir, contextmanager
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from launcher.core.activity import QUIET
from launcher.core.checkpoints import sha256
from launcher.core.events import PROCESS_EVENTS, Alert, Event, Step, Waiting, events_of
from launcher.core.metrics import TIMES

for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:  # in the background of a shell; children would, too
        signal.signal(_number, signal.SIG_DFL)

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as rlrun has it
os.environ[QUIET] = "1"  # what is checked is shown where a test asks for it
ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
"""What people read: the tests of its blocks, commands and links go through all of it."""


@dataclass(frozen=True)
class Page:
    """A page and its fenced blocks: `console` shows commands with their output, `bash` commands alone."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def files(self) -> dict[str, str]:
        """Files that the page shows: `NAME` above a block with the text, or `NAME` holds `TEXT`."""
        shown = re.findall(r"^`([\w./]+)`\n\n```\w+\n(.*?)^```", self.text, re.MULTILINE | re.DOTALL)
        return dict([*shown, *re.findall(r"^`([\w./]+)` holds `([^`]+)`", self.text, re.MULTILINE)])

    def blocks(self, language: str) -> list[str]:
        """Text of the blocks of a language, each command on one line."""
        found = re.findall(rf"^```{language}\n(.*?)^```", self.text, re.MULTILINE | re.DOTALL)
        return [re.sub(r"\\\n\s*", "", block) for block in found] if language == "bash" else found

    @property
    def sequences(self) -> list[str]:
        """The `bash` blocks that train and then use what was trained."""
        needs_files = re.compile(f"^{WITH_FILES}", re.MULTILINE)
        return [block for block in self.blocks("bash") if "rlrun train" in block and needs_files.search(block)]

    @property
    def with_files(self) -> list[str]:
        """Commands of the other `bash` blocks that need files, a model or a hub."""
        lines = [line for block in self.blocks("bash") if block not in self.sequences for line in block.splitlines()]
        return [line.partition("#")[0].strip() for line in lines if re.match(WITH_FILES, line)]


WITH_FILES = r"rlrun (data|model|reward|checkpoints|chat|generate) "
OF_PAGES: Mapping[str, Callable[[Page], Iterable[str]]] = {
    "console_block": lambda page: page.blocks("console"),
    "text_block": lambda page: page.blocks("text"),
    "file_command": lambda page: page.with_files,
}
"""Arguments of tests that run once for each of these on any page."""


def pytest_configure() -> None:
    """No test depends on how fast the machine is. The environments of verl and vLLM have no hypothesis."""
    if find_spec("hypothesis"):
        from hypothesis import HealthCheck, settings  # noqa: PLC0415

        settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("busy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with long tests come first, so that no process is left alone with one at the end."""
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`page` with each page of PAGES alone; with one of OF_PAGES, each of those with its page."""
    if "page" not in metafunc.fixturenames:
        return
    pages = [Page(path) for path in PAGES]
    name = next((name for name in OF_PAGES if name in metafunc.fixturenames), None)
    if name is None:
        metafunc.parametrize("page", pages, ids=[page.path.name for page in pages])
        return
    found = [(page, one) for page in pages for one in OF_PAGES[name](page)]
    ids = [f"{page.path.name}: {one.splitlines()[0]}" for page, one in found]
    metafunc.parametrize(("page", name), found, ids=ids)


@pytest.fixture(scope="session")
def all_pages() -> list[Page]:
    return [Page(path) for path in PAGES]


RLRUN = [str(Path(sys.executable).parent / "rlrun")]
MODEL = ["model=tiny", "model.hidden_size=16", "model.num_hidden_layers=1", "model.intermediate_size=32"]
DATA = ["data=reverse", "data.n_prompts=64", "data.n_val=8", "data.n_demos=64", "data.train_batch_size=8"]
SMALL = [*MODEL, *DATA, "engine.num_threads=1", "sampler.n=2", "optim.lr=1e-2"]
"""A run whose cost is the loading of torch."""

Ran = subprocess.CompletedProcess[str]
PIECE = 0.055
"""CPU seconds of the piece of work that `within` measures a machine with, on a quiet one."""


def plain() -> dict[str, str]:
    """This environment without what changes how things are printed."""
    excluded = ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TERM")
    return {name: value for name, value in os.environ.items() if name not in excluded}


@pytest.fixture(autouse=True, scope="session")
def weights_process() -> Iterator[Callable[..., Any]]:
    """A plan in this process costs one load of transformers for all tests: its tokenizers are forked from here, also
    beside the threads that pytest-xdist has, and weights are compared with their config here. That also has a process
    of its own otherwise, which this gives."""
    if not find_spec("xdist"):  # the environments of verl and vLLM lack more than this
        yield lambda _: None
        return
    from launcher.models import dry_load  # noqa: PLC0415
    from launcher.text import process  # noqa: PLC0415

    def of_this(how: str) -> Any:
        importlib.import_module("launcher.text.measure")
        return get_context("fork" if threading.active_count() <= threads else how)

    def here(asked: dict[str, Any]) -> Any:
        importlib.import_module("transformers").utils.logging.set_verbosity_error()
        program = importlib.import_module("launcher.engines.torch.model.dry_load")
        return program.dry_load(asked["folder"], asked["loader"], asked["tensors"])

    get_context, in_a_process, threads = process.get_context, dry_load._in_a_process, threading.active_count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "get_context", of_this)
        patch.setattr(dry_load, "_in_a_process", here)
        yield in_a_process


@pytest.fixture(autouse=True, scope="session")
def _texts_are_parsed_once() -> Iterator[None]:
    """Tests make hundreds of configs with the same interpolations and judges of the same rules; a program makes one."""
    if not find_spec("xdist"):
        yield
        return
    from omegaconf import base  # noqa: PLC0415

    from launcher.health import expressions, judge, run_judge  # noqa: PLC0415

    known: dict[Any, Any] = {}

    def parse(text: str, metrics: Iterable[str], functions: Mapping[str, Any], run: Iterable[str] | None = None) -> Any:
        key = text, frozenset(metrics), tuple(functions), run if run is None else frozenset(run)
        if key not in known:
            known[key] = expressions.parse_condition(text, key[1], functions, key[3])
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "parse", cache(base.parse))
        for module in (judge, run_judge):
            patch.setattr(module, "parse_condition", parse)
        yield


@pytest.fixture(scope="module")
def without_gc() -> Iterator[None]:
    """For tests that hold the syntax of all files: looking at it for garbage takes twice the time of reading it."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def _same_signals() -> Iterator[None]:
    """What a test leaves ignored stays so in every process that later tests start."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    assert {number: signal.getsignal(number) for number in before} == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == blocked


class Commands:
    """`rlrun` as a person calls it, from a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str, **more: Any) -> Ran:
        """To its end; at most five minutes, which only a machine with much else to do would need."""
        told = {"cwd": self.folder, "env": plain(), "timeout": 300, "capture_output": True, "text": True} | more
        return subprocess.run([*RLRUN, *words], check=False, stdin=subprocess.DEVNULL, **told)

    def here(self, *words: str) -> Ran:
        """In this process, which has loaded what the command would load; any real command of a kind is enough."""
        from typer.testing import CliRunner  # noqa: PLC0415 - the environments of verl and vLLM have no need of it

        app = importlib.import_module("launcher.cli.main").app
        with chdir(self.folder):
            ran = CliRunner().invoke(app, words, prog_name="rlrun", catch_exceptions=False)
        return Ran(words, ran.exit_code, ran.stdout, ran.stderr)

    def begin(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """Without waiting; what it says goes to the file `said`."""
        with (self.folder / "said").open("a") as output:
            told = {"cwd": self.folder, "env": plain(), "text": True, "stdout": output, "stderr": output}
            return subprocess.Popen([*RLRUN, *words], **{**told, "stdin": subprocess.DEVNULL, **more})

    def run(self, name: str) -> Path:
        return self.folder / "runs" / "rlrun" / name


@pytest.fixture(scope="session")
def commands() -> type[Commands]:
    return Commands


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """A copy of the folder of this name, which whichever of pytest's own processes asks first makes for all of them."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    def make_or_copy(name: str, make: Callable[[Path], None]) -> Path:
        folder = root / f"{name}-made-once"
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                draft = tmp_path_factory.mktemp(name)
                make(draft)
                shutil.copytree(draft, folder)
        return Path(shutil.copytree(folder, tmp_path_factory.mktemp(name), dirs_exist_ok=True))

    return make_or_copy


@pytest.fixture(scope="session")
def small() -> list[str]:
    return SMALL


@pytest.fixture(scope="session")
def trained(made_once: Callable[[str, Callable[[Path], None]], Path]) -> tuple[Ran, Path]:
    """What `rlrun train` printed, and the run `done`: six steps, three checkpoints. Tests change copies of it."""

    def train(folder: Path) -> None:
        words = ["trainer.total_training_steps=6", "trainer.save_freq=2", "trainer.test_freq=3", "trainer.keep_last=9"]
        ran = Commands(folder)("train", "algorithm=sft", *SMALL, *words, "trainer.experiment_name=done")
        assert ran.returncode == 0, ran.stderr
        (folder / "printed.json").write_text(json.dumps(vars(ran)))

    folder = made_once("trained", train)
    return Ran(**json.loads((folder / "printed.json").read_text())), Commands(folder).run("done")


@pytest.fixture(scope="session")
def small_sft() -> list[str]:
    """`small` without what SFT does not read, of which it would warn."""
    return [word for word in SMALL if not word.startswith("sampler.")]


def wait_until(ready: Callable[[], object], seconds: float = 600.0) -> None:
    """The bound only ends a test that hangs: a busy machine may take minutes for what takes a second."""
    give_up = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < give_up, "it never came to that"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    return wait_until


def told(folder: Path) -> list[str]:
    """A run's events as they must be again in an equal run: clocks, the run's name, and what became of its processes
    taken off."""
    events = events_of(folder / "events.jsonl")
    return [_without_times(event) for event in events if not _of_machine(event)]


def _of_machine(event: Event) -> bool:
    """Whether it is of the processes, or says that something took long or memory was short."""
    is_alert_of_times = isinstance(event, Alert) and event.metric.startswith(TIMES)
    return isinstance(event, (*PROCESS_EVENTS, Waiting)) or is_alert_of_times


def _without_times(event: Event) -> str:
    node = {"kind": type(event).__name__, **asdict(event), "at": 0}
    if "run" in node:
        node["run"] = ""
    if isinstance(event, Step):
        node["metrics"] = {name: value for name, value in event.metrics.items() if not name.startswith(TIMES)}
    return json.dumps(node)


def weights(folder: Path, step: int) -> str:
    """sha256 of the policy after `step`."""
    return sha256(folder / "checkpoints" / f"step_{step:06d}" / "policy" / "model.safetensors")


@pytest.fixture(scope="session")
def result() -> Callable[[Path, int], tuple[list[str], str]]:
    """What equal runs have equal, byte for byte: events and final weights."""
    return lambda folder, step: (told(folder), weights(folder, step))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int, Path], Path]]:
    """Mounts a disk of so many KiB at a folder; needs root."""
    mounted: list[Path] = []

    def mount(kib: int, at: Path) -> Path:
        at.mkdir(parents=True, exist_ok=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=700", "tmpfs", str(at)]
        if os.geteuid() or not shutil.which("mount") or subprocess.run(words, check=False).returncode:
            pytest.skip("a small disk needs root and mount")
        mounted.append(at)
        return at

    yield mount
    for at in mounted:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


SLURM = {
    "sbatch": '[ -e "{folder}/refuses" ] && { cat "{folder}/refuses" >&2; exit 1; }; echo 12',
    "squeue": '[ -e "{folder}/standing" ] || { echo "squeue: error: Invalid job id specified" >&2; exit 1; }\n'
              'cat "{folder}/standing"',
    "scancel": 'rm -f "{folder}/standing"',
    "scontrol": ":",
}  # fmt: skip


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands as scripts in this folder: `squeue` says what lies in `standing`; `calls` has every call."""
    folder = tmp_path / "slurm-commands"
    folder.mkdir()
    for name, body in SLURM.items():
        script = folder / name
        text = body.replace("{folder}", str(folder))
        script.write_text(f'#!/bin/sh\necho "{name} $*" >> {folder}/calls\n{text}\n')
        script.chmod(0o755)
    (folder / "calls").touch()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("RLRUN_SLURM", raising=False)
    return folder


Within = Callable[[float], AbstractContextManager[None]]


@pytest.fixture
def within() -> Within:
    """`with within(1.0):` fails where its body takes more CPU seconds than that on a quiet machine.

    A busy machine slows all of its processes: the limit grows with the time of a fixed piece of work, done before and
    after it, as the load may begin or end meanwhile.
    """

    def piece() -> float:
        begin = time.process_time()
        for _ in range(20):
            json.loads(json.dumps(list(range(20_000))))
        return time.process_time() - begin

    @contextmanager
    def limit(seconds: float) -> Iterator[None]:
        before, begin = piece(), time.process_time()
        yield
        took = time.process_time() - begin
        if took > seconds:
            allowed = seconds * max(1.0, max(before, piece()) / PIECE)
            assert took <= allowed, f"{took:.2f} CPU s, at most {allowed:.2f}"

    return limit
