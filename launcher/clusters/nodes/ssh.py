"""Other machines over ssh: each joins or leaves by its own `rlrun`.

A file of hosts has one a line: `HOST [WORDS FOR ray start]`, such as `10.0.0.2 --num-gpus=4`; # begins a comment.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from launcher.core.problems import Problem, Problems, error_message, short_repr

AT_ONCE = 32
COMMAND_S = 600.0
QUIET = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
"""No prompt for a password, and no long wait for a host that is switched off."""


@dataclass(frozen=True)
class Host:
    name: str
    """USER@HOST, or a name of ssh's configuration."""
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shell:
    """The commands that reach other machines, and that run `rlrun` there."""

    ssh: tuple[str, ...]
    rlrun: tuple[str, ...]

    def join(self, hosts: Sequence[Host], address: str, token: str) -> Iterator[tuple[Host, str]]:
        """Each host, with the reason if it has not joined. The token is sent to standard input, as everyone can read
        command lines."""
        asked = {
            host: ["cluster", "join", address, "--token-file", "-", *(["--", *host.words] if host.words else [])]
            for host in hosts
        }
        return self._each(asked, token + "\n")

    def down(self, hosts: Sequence[Host]) -> Iterator[tuple[Host, str]]:
        return self._each({host: ["cluster", "down"] for host in hosts}, "")

    def _each(self, asked: dict[Host, list[str]], text: str) -> Iterator[tuple[Host, str]]:
        with ThreadPoolExecutor(AT_ONCE) as several:
            answers = {host: several.submit(partial(self._tell, host, words, text)) for host, words in asked.items()}
            for host, answer in answers.items():
                yield host, answer.result()

    def _tell(self, host: Host, words: Sequence[str], text: str) -> str:
        argv = [*self.ssh, *QUIET, host.name, shlex.join([*self.rlrun, *words])]
        try:
            ran = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        except subprocess.TimeoutExpired:
            return f"did not answer in {COMMAND_S:g} s"
        except OSError as error:
            return f"{self.ssh[0]}: {error_message(error)}"
        lines = [line.strip() for line in ran.stderr.splitlines() if line.strip()]
        named = [line.removeprefix("✗ ") for line in lines if line.startswith("✗ ")]
        return "" if ran.returncode == 0 else "; ".join(named or lines[-1:]) or f"ended with {ran.returncode}"


def read_hosts(file: Path) -> list[Host]:
    """Raises `Problems` that name file and line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = f"{file}: {error_message(error)}"
        raise Problems(Problem("--nodes", why, "use a file with one host a line", "bad-file")) from error
    hosts, problems = dict[str, Host](), list[Problem]()
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
            got = _invalid(words) if words else ""
        except ValueError as error:
            words, got = [], error_message(error)
        if got:
            problems.append(Problem(f"{file}:{number}", got, "expected HOST, or HOST --num-gpus=4", "bad-file"))
        elif words and words[0] in hosts:
            got = f"{words[0]} is there already"
            problems.append(Problem(f"{file}:{number}", got, "name each host once", "bad-file"))
        elif words:
            hosts[words[0]] = Host(words[0], tuple(words[1:]))
    if not hosts and not problems:
        problems.append(Problem("--nodes", f"{file} names no host", "write one a line", "bad-file"))
    if problems:
        raise Problems(problems)
    return list(hosts.values())


def _invalid(words: Sequence[str]) -> str:
    """Why the words of a line are no host; empty where they are one."""
    name, *options = words
    if name.startswith("-"):  # ssh would take it for an option
        return f"{short_repr(name)} is not a host"
    if wrong := [word for word in options if not word.startswith("--")]:
        return f"{short_repr(wrong[0])} is not an option of ray start"
    return ""
