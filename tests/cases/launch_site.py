"""What stands on a machine before a launch: files, rows, model folders, small disks, taken ports.

A site is data, as the cases beside this file write it; all of it lies in one folder, and nothing is downloaded:

    rows: {train.jsonl: sums 64}             rows of a kind (KINDS), written as the file's ending says
    files: {reward.py: "def f(...): ..."}    text as it is
    repo: [recipes/sft.sh]                   files of this repository
    models: {models/small: {}}               a Llama of two layers that loads; launch_model.py names its settings
    json: {models/small/config.json: {}}     what is laid over a JSON file that is there by now
    late: {models/small/added.txt: "..."}    text as it is, written after the models
    cut: {train.parquet: 200}                a file's first bytes, as a broken copy leaves them
    without: [models/small/config.json]      what is taken away again
    disks: {runs: 64m}                       a disk of that size (and options of tmpfs)
    env: {HF_HUB_OFFLINE: "1"}               <here> is the site's folder; PYTHONPATH is put before what there is
    programs: [bin]                          folders of files that can be run, before what PATH holds
    ports: [taken]                           <taken> in the words is a port that somebody listens at
    serving: [judge]                         <judge> is that of a server that scores answers, or, as a mapping, one
                                             whose reply has them under another name: {judge: rewards}

<free> is a port without a listener.
"""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from launch_model import Model
from local_servers import scoring

from launcher.core.machine import LOOPBACK, free_ports

Node = Mapping[str, Any]
ROOT = Path(__file__).parents[2]
FORGOTTEN = ("HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_ENDPOINT", "MODELSCOPE_API_TOKEN",
             "WANDB_API_KEY", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "COLUMNS")  # fmt: skip


@dataclass
class Site:
    """A folder with what was built, and how a program is started there."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    disks: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    """By the name that stands in the words."""
    scores: dict[str, str] = field(default_factory=dict)
    """By the name of a server: the name that its scores have in a reply, which may change."""
    kept: ExitStack = field(default_factory=ExitStack)

    def words(self, text: str) -> list[str]:
        """As a shell splits them, ports filled in."""
        return [self.filled(word) for word in shlex.split(text)]

    def filled(self, text: str) -> str:
        for name, port in self.ports.items():
            text = text.replace(f"<{name}>", str(port))
        return text.replace("<here>", str(self.folder))

    def environment(self) -> dict[str, str]:
        """Of nobody in particular: what a person has at home is neither found nor touched."""
        home = self.folder / ".home"
        own = {name: value for name, value in os.environ.items() if name not in FORGOTTEN}
        own |= {"HOME": str(home), "HF_HOME": str(home / "hf"), "MODELSCOPE_HOME": str(home / "modelscope"),
                "RLRUN_MODELS": str(home / "models"), "RLRUN_DATA": str(home / "data")}  # fmt: skip
        given = {name: self.filled(value) for name, value in self.env.items()}
        paths = [given.pop("PYTHONPATH", ""), own.get("PYTHONPATH", "")]
        if any(paths):
            own["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        return own | given

    def command(self, *words: str) -> list[str]:
        """`words` in a room of its own where the site has disks, which then nobody else sees."""
        if not self.disks:
            return [*words]
        mounts = [f"mkdir -p {shlex.quote(place)} && mount -t tmpfs -o size={size} tmpfs {shlex.quote(place)}"
                  for place, size in self.disks.items()]  # fmt: skip
        as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
        return ["unshare", "--mount", *as_root, "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh", *words]

    def build(self, node: Node) -> None:
        for name, text in node.get("files", {}).items():
            self._made(name).write_text(text)
        for name, groups in node.get("rows", {}).items():
            listed = groups if isinstance(groups, list) else [groups]
            _write_rows(self._made(name), [row for group in listed for row in rows(group)])
        for name in node.get("repo", ()):
            shutil.copy(ROOT / name, self._made(name))
        for name, given in node.get("models", {}).items():
            _remove(self.folder / name)
            Model(**(given or {})).save(self._made(name))
        for name, given in node.get("json", {}).items():
            path = self._made(name)
            path.write_text(json.dumps({**(json.loads(path.read_text()) if path.is_file() else {}), **given}))
        for name, text in node.get("late", {}).items():
            self._made(name).write_text(text)
        for name, size in node.get("cut", {}).items():
            (self.folder / name).write_bytes((self.folder / name).read_bytes()[:size])
        for name in node.get("without", ()):
            _remove(self.folder / name)
        for name in node.get("programs", ()):
            self._runnable(self.folder / name)
        self.env |= node.get("env", {})
        self.disks = {**self.disks, **node.get("disks", {})}
        self._listen(node)

    def _runnable(self, folder: Path) -> None:
        for file in folder.iterdir():
            file.chmod(0o755)
        self.env["PATH"] = os.pathsep.join([str(folder), self.env.get("PATH", os.environ["PATH"])])

    def _listen(self, node: Node) -> None:
        for name in node.get("ports", ()):
            listener = self.kept.enter_context(socket.create_server((LOOPBACK, 0)))
            self.ports[name] = int(listener.getsockname()[1])
        servers = node.get("serving", ())
        for name, scores in (servers if isinstance(servers, dict) else dict.fromkeys(servers, "scores")).items():
            if name not in self.scores:
                self.ports[name] = self.kept.enter_context(scoring(partial(self._score, name)))
            self.scores[name] = scores

    def _score(self, name: str, answers: list[dict[str, Any]], _: Node) -> dict[str, Any]:
        """1 for an answer that holds the ground truth."""
        return {self.scores[name]: [float((one["ground_truth"] or "a") in one["response"]) for one in answers]}

    def _made(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


@contextmanager
def site(folder: Path, node: Node) -> Iterator[Site]:
    made = Site(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with made.kept:
        (made.ports["free"],) = free_ports(1, LOOPBACK)
        made.build(node)
        yield made


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def single(*nodes: Node) -> bool:
    """Whether a launch on these sites needs a process of its own, because of how that is started."""
    return any(node.get("disks") for node in nodes)


# ---- rows


def rows(group: str | Node) -> Iterator[dict[str, Any]]:
    """`sums 64`: sixty-four of a kind; `sums 8 64`: eight others, from number 64 on. As a mapping also `over`: what is
    laid over each row."""
    given: Node = (
        dict(zip(("kind", "count", "first"), group.split(), strict=False)) if isinstance(group, str) else group
    )
    first = int(given.get("first", 0))
    for number in range(first, first + int(given["count"])):
        yield {**KINDS[given["kind"]](number), **given.get("over", {})}


def _asked(number: int) -> str:
    return f"{number}+{number + 1}=?"


def _sum(number: int) -> str:
    return str(2 * number + 1)


KINDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "answers": lambda n: {"prompt": _asked(n), "response": _sum(n)},
    "chats": lambda n: {"messages": [{"role": "user", "content": _asked(n)},
                                     {"role": "assistant", "content": _sum(n)}]},
    "pairs": lambda n: {"prompt": _asked(n), "chosen": _sum(n), "rejected": str(n)},
    "sums": lambda n: {"prompt": _asked(n), "reward_model": {"style": "rule", "ground_truth": _sum(n)},
                       "data_source": "openai/gsm8k"},
    "prompts": lambda n: {"prompt": _asked(n), "data_source": "openai/gsm8k"},
    "asked": lambda n: {"prompt": [{"role": "user", "content": _asked(n)}], "data_source": "openai/gsm8k",
                        "reward_model": {"style": "rule", "ground_truth": _sum(n)}},
    "alpaca": lambda n: {"instruction": _asked(n), "output": _sum(n)},
    "systems": lambda n: {"messages": [{"role": "system", "content": "add"}, {"role": "user", "content": _asked(n)},
                                       {"role": "assistant", "content": _sum(n)}]},
    "chat_pairs": lambda n: {side: [{"role": "user", "content": _asked(n)}, {"role": "assistant", "content": text}]
                             for side, text in (("chosen", _sum(n)), ("rejected", str(n)))},
}  # fmt: skip


def _write_rows(path: Path, found: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in found)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(found), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif path.suffix == ".json":
        path.write_text(json.dumps(found))
    else:
        path.write_text(text)
