"""Other machines, by ssh: each is told to join, or to leave, with a command of its own `rlrun`.

A file of hosts has one a line: `HOST [WORDS FOR ray start]`, such as `10.0.0.2 --num-gpus=4`; # begins a remark.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from launcher.core.problems import Problems, error_message, short_repr

AT_ONCE = 32
PATIENCE_S = 600.0
QUIET = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
"""Nobody is there to type a password, and a host that is switched off is not waited for."""


@dataclass(frozen=True)
class Host:
    name: str
    """As ssh takes it: USER@HOST, or a name of its own configuration."""
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shell:
    """How other machines are reached, and what `rlrun` is called there."""

    ssh: tuple[str, ...]
    rlrun: tuple[str, ...]

    def join(self, hosts: Sequence[Host], address: str, token: str) -> Iterator[tuple[Host, str]]:
        """Each host as soon as it is done, with the reason where it has not joined. The token goes by standard input,
        as what stands in a command line can be read by everybody."""
        asked = {
            host: ["cluster", "join", address, "--token-file", "-", *(["--", *host.words] if host.words else [])]
            for host in hosts
        }
        return self._each(asked, token + "\n")

    def down(self, hosts: Sequence[Host]) -> Iterator[tuple[Host, str]]:
        return self._each({host: ["cluster", "down"] for host in hosts}, "")

    def _each(self, asked: dict[Host, list[str]], text: str) -> Iterator[tuple[Host, str]]:
        with ThreadPoolExecutor(AT_ONCE) as several:
            told = {host: several.submit(partial(self._tell, host, words, text)) for host, words in asked.items()}
            for host, answer in told.items():
                yield host, answer.result()

    def _tell(self, host: Host, words: Sequence[str], text: str) -> str:
        argv = [*self.ssh, *QUIET, host.name, shlex.join([*self.rlrun, *words])]
        try:
            ran = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        except subprocess.TimeoutExpired:
            return f"did not answer in {PATIENCE_S:g} s"
        except OSError as error:
            return f"{self.ssh[0]}: {error_message(error)}"
        lines = [line.strip() for line in ran.stderr.splitlines() if line.strip()]
        named = [line.removeprefix("✗ ") for line in lines if line.startswith("✗ ")]
        return "" if ran.returncode == 0 else "; ".join(named or lines[-1:]) or f"ended with {ran.returncode}"


def hosts_of(file: Path) -> list[Host]:
    """Raises `Problems` that name file and line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Problems([f"--nodes: {file}: {error_message(error)}; a file with one host a line would do"]) from error
    found, wrong = dict[str, Host](), list[str]()
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            wrong.append(f"{file}:{number}: {error_message(error)}; HOST, or HOST --num-gpus=4, would do")
            continue
        if not words:
            continue
        name, more = words[0], tuple(words[1:])
        if name.startswith("-"):  # ssh would take it for an option
            wrong.append(f"{file}:{number}: {short_repr(name)} is no host; HOST, or HOST --num-gpus=4, would do")
        elif bad := [word for word in more if not word.startswith("--")]:
            wrong.append(f"{file}:{number}: {short_repr(bad[0])} is no word for ray start; --num-gpus=4 would be one")
        elif name in found:
            wrong.append(f"{file}:{number}: {name} is there already; each host once would do")
        else:
            found[name] = Host(name, more)
    if not found and not wrong:
        wrong.append(f"--nodes: {file} names no host; one a line would do")
    if wrong:
        raise Problems(wrong)
    return list(found.values())
