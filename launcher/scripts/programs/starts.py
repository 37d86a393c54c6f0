"""Commands that start something else: bash, env, nohup, srun, torchrun, `ray job submit`, python.

Each is read for what it starts: text for a shell is read as a script, a program of Python is a launch."""

from __future__ import annotations

import json
import re
from collections.abc import Set
from dataclasses import replace

import yaml

from launcher.scripts.programs.line_filters import xargs_groups
from launcher.scripts.programs.streams import UnknownOutput
from launcher.scripts.programs.wrappers import ALIASES, POSITIONAL, SUBCOMMANDS, VALUES
from launcher.scripts.words.ends import ended
from launcher.scripts.words.files import NotReadable, known_text, script_text
from launcher.scripts.words.state import (
    LAUNCHES,
    BashProcess,
    ExitScript,
    InputStream,
    Launch,
    ReturnFromFunction,
    StopReading,
    Wrapper,
    first_variables,
    is_open,
)

SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
PYTHON = re.compile(r"(?:.*/)?(?:python|pypy|python-jl)\d?(?:\.\d+)?t?")
OVERRIDE = re.compile(r"(?:\+\+|\+|~)?[A-Za-z_][\w./@:-]*=.*|~[\w./@-]+", re.DOTALL)
"""An argument of Hydra."""
TRAINERS = re.compile(r"(?:.*[./])?(?:main|train|run|sft|rl|ppo|grpo|dapo|fsdp)\w*(?:\.py)?|.*trainer.*")
"""Names of modules and files that are launches also without such arguments."""

LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
MANAGES = ("install", "add", "remove", "uninstall", "sync", "lock", "pull", "upgrade", "download")
"""Words after which a program names packages, which may be called as a launcher is."""


def command_name(shell: BashProcess, word: str) -> str:
    """The program that a word names, without its folder: also of `$(which python3)`."""
    visible = shell.reading.visible(word).rstrip("}")
    name = re.split(r"[/ ]", visible)[-1] if is_open(word) else visible.rpartition("/")[2]
    return ALIASES.get(name, name)


def starts_something(shell: BashProcess, words: list[str]) -> bool:
    """Whether the command is one that is read here."""
    name = command_name(shell, words[0])
    if name == "ray":
        return words[1:3] == ["job", "submit"]
    if name in SUBCOMMANDS:
        return any(word in SUBCOMMANDS[name] for word in words[1:6])
    return name in SHELLS or name in VALUES or PYTHON.fullmatch(name) is not None


def start(shell: BashProcess, words: list[str], environment: dict[str, str]) -> int:
    """Reads what the command starts; the words are expanded, `environment` is what stands before them."""
    shell.reading.step()
    if not words:
        return 0
    name = command_name(shell, words[0])
    shell.write_unknown()
    shell.assumed = f"{name} is assumed to succeed"
    if PYTHON.fullmatch(name):
        return start_python(shell, words[1:], environment)
    if name in SHELLS:
        return start_shell(shell, words[1:], environment)
    if name in LAUNCHERS and (name != "accelerate" or words[1:2] == ["launch"]):
        return start_launcher(shell, name, words[1 + (name == "accelerate") :], environment)
    if not starts_something(shell, words):
        return start_file(shell, words, environment)
    return start_wrapped(shell, name, words[1:], environment)


def command_within(shell: BashProcess, words: list[str]) -> int:
    """Where the words of a program that is not known name a command of Python or of a shell; 0 where they do not."""
    for place, word in enumerate(words[1:], 1):
        if word in MANAGES:
            return 0
        name, after = command_name(shell, word), words[place + 1 :]
        if name in SHELLS and re.fullmatch(r"-[a-z]*c", (after or [""])[0]):
            return place
        program = any(one.endswith(".py") or one in ("-m", "--module") for one in after)
        if name in LAUNCHERS and program and (name != "accelerate" or after[0] == "launch"):
            return place
        if PYTHON.fullmatch(name):
            first = next((one for one in after if not re.fullmatch(r"-[bBdEiIOqsSuvP]+", one)), "")
            if first == "-m" or first.endswith(".py"):
                return place
    return 0


def within(shell: BashProcess, wrapper: Wrapper, words: list[str], environment: dict[str, str]) -> int:
    """Starts a command within a wrapper."""
    kept, shell.wrappers = shell.wrappers, (*shell.wrappers, wrapper)
    if len(shell.wrappers) > 20:
        raise StopReading("more than 20 commands that start each other")
    try:
        return start(shell, words, environment)
    finally:
        shell.wrappers = kept


def split_options(words: list[str], valued: Set[str]) -> tuple[dict[str, str], list[str]]:
    """Options before the command, and the rest."""
    options: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        at += 1
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if not equals and word in valued and at < len(words):
            value = words[at]
            at += 1
        elif not equals and not word.startswith("--") and len(word) > 2 and word[:2] in valued and word not in valued:
            name, value = word[:2], word[2:]
        key = name.lstrip("-").replace("_", "-")
        again = key in options and key in ("e", "env", "x", "u", "unset")
        options[key] = f"{options[key]}\n{value}" if again else value
    return options, words[at:]


def start_wrapped(shell: BashProcess, name: str, words: list[str], environment: dict[str, str]) -> int:
    """srun, env, nohup, `ray job submit`, docker, ssh, ..."""
    before: list[str] = []
    if name in SUBCOMMANDS:
        for _ in range(2 if name == "ray" else 1):
            place = next((at for at, word in enumerate(words) if word in SUBCOMMANDS[name]), 0)
            before += words[:place]
            words = words[place + 1 :]
    options, rest = split_options([*before, *words], VALUES[name])
    if name == "xargs":
        return start_xargs(shell, options, rest, environment)
    for _ in range(POSITIONAL.get(name, 0)):
        if rest and not PYTHON.fullmatch(command_name(shell, rest[0])):
            options.setdefault("target", rest[0])
            rest = rest[1:]
    if name == "kubectl":
        rest = split_options(rest, VALUES[name])[1]
    if name == "env":
        shell, environment = without_variables(shell, options, environment)
        rest = rest[rest[:1] == ["-"] :]
    environment = {**environment, **environment_of(shell, name, options)}
    if name in ("env", "sudo", "docker", "doas"):
        while rest and re.match(r"[A-Za-z_]\w*=", rest[0]):
            key, _, value = rest[0].partition("=")
            environment[key] = value
            rest = rest[1:]
    if name == "script" and "c" in options:
        rest = ["bash", "-c", options["c"]]
    if name == "sbatch":
        rest = ["bash", *(["-c", options["wrap"]] if "wrap" in options else rest)]
    if not rest:
        text = shell.stdin.text if name == "ssh" else None
        return start_text(shell, text, "bash", [], environment) if text else 0
    shown = {key: value for key, value in options.items() if key != "runtime-env-json"}
    wrapper = Wrapper("ray job submit" if name == "ray" else name, shown)
    if name in ("ssh", "pdsh") or (
        len(rest) == 1 and re.search(r"\s", rest[0]) and name in ("ray", "docker", "env", "conda")
    ):
        inner = shell.new_shell("bash", shell.file, [], exported=name == "ray")
        inner.wrappers = (*shell.wrappers, wrapper)
        return start_text(inner, " ".join(rest), "bash", [], environment, new=False)
    return within(shell, wrapper, rest, environment)


def without_variables(
    shell: BashProcess, options: dict[str, str], environment: dict[str, str]
) -> tuple[BashProcess, dict[str, str]]:
    """The shell and the environment without what `env -u NAME` and `env -i` take away."""
    found = shell.exported()
    if {"i", "ignore-environment", ""} & {*options}:
        names = {*found, *environment}
    else:
        names = {*options.get("u", "").split("\n"), *options.get("unset", "").split("\n")} & {*found, *environment}
    if not names:
        return shell, environment
    inner = shell.subshell()
    variables = inner.visible_variables()
    for name in names & {*found}:
        variables[name].exported = False
    return inner, {key: value for key, value in environment.items() if key not in names}


def environment_of(shell: BashProcess, name: str, options: dict[str, str]) -> dict[str, str]:
    """What a wrapper adds to the environment: `docker -e A=b`, `srun --export=ALL,A=b`, Ray's env_vars."""
    found: dict[str, str] = {}
    listed = [*options.get("e", "").split("\n"), *options.get("env", "").split("\n"), *options.get("x", "").split("\n")]
    if name in ("docker", "apptainer", "enroot", "mpirun"):
        found |= dict(entry.split("=", 1) for entry in listed if "=" in entry)
    if name == "srun":
        found |= dict(entry.split("=", 1) for entry in options.get("export", "").split(",") if "=" in entry)
    if name != "ray":
        return found
    described: object = None
    try:
        if "runtime-env-json" in options:
            described = json.loads(options["runtime-env-json"])
        elif "runtime-env" in options:
            text = script_text(shell, options["runtime-env"])
            if text is None:
                shell.report_open(
                    f"--runtime-env={options['runtime-env']}", "", "the file lies only where the script runs"
                )
            elif "&" not in text[0] or "*" not in text[0]:
                described = yaml.safe_load(text[0])
    except (ValueError, RecursionError, yaml.YAMLError, NotReadable):
        shell.report_unread("the runtime environment of ray job submit cannot be read")
    variables = described.get("env_vars") if isinstance(described, dict) else None
    if isinstance(described, dict) and isinstance(described.get("working_dir"), str):
        options.setdefault("working-dir", described["working_dir"])
    if isinstance(variables, dict):
        found |= {str(key): str(value) for key, value in variables.items()}
    return found


def start_xargs(shell: BashProcess, options: dict[str, str], words: list[str], environment: dict[str, str]) -> int:
    """Commands for the words of its input."""
    if not words:
        return 0
    file = options.get("a") or options.get("arg-file")
    text = known_text(shell, file) if file else shell.stdin.text
    if text is None:
        shell.report_open(f"xargs {words[0]}", "", "its input is known only where the script runs; read without it")
        return within(shell, Wrapper("xargs"), words, environment)
    try:
        groups = xargs_groups(text, options, words)
    except UnknownOutput:
        groups = []
        shell.report_unread("the input of xargs has a quote that does not end, or an option that is not read")
    if len(groups) > LAUNCHES:
        raise StopReading(f"starts more than {LAUNCHES} programs")
    for group in groups:
        within(shell, Wrapper("xargs"), group, environment)
    return 0


def start_shell(shell: BashProcess, words: list[str], environment: dict[str, str]) -> int:
    """`bash -c text`, `bash file arguments`, `bash <<EOF`."""
    at, command, from_input = 0, False, False
    options: set[str] = set()
    names = {"e": "errexit", "u": "nounset", "a": "allexport"}
    while at < len(words) and words[at][:1] in ("-", "+") and len(words[at]) > 1:
        word = words[at]
        at += 1
        if word == "--":
            break
        if word.startswith("--"):
            at += word in ("--rcfile", "--init-file")
            continue
        command |= "c" in word[1:]
        from_input |= "s" in word[1:]
        options |= {names[letter] for letter in word[1:] if letter in names}
        at += word[-1] in "oO"
    rest = words[at:]
    if command and rest:
        return start_text(shell, rest[0], rest[1] if len(rest) > 1 else "bash", rest[2:], environment, options)
    if rest and not from_input:
        try:
            found = script_text(shell, rest[0])
        except NotReadable as error:
            shell.report_unread(f"{rest[0]} cannot be read: {error}")
            return 1
        if found is None:
            shell.report_open(
                f"bash {rest[0]}", "", "the script lies only where this one runs; what it starts is not known"
            )
            return 0
        return start_text(shell, found[0], rest[0], rest[1:], environment, options, file=found[1])
    return start_text(shell, shell.stdin.text, "bash", rest, environment, options)


def start_text(
    shell: BashProcess, text: str | None, name: str, arguments: list[str], environment: dict[str, str],
    options: set[str] | None = None, *, file: str = "", new: bool = True,
) -> int:  # fmt: skip
    """Reads text in a shell of its own."""
    if text is None:
        return 0
    inner = shell.new_shell(name, shell.file, arguments) if new else shell
    inner.line = shell.line
    inner.options = set(options or ())
    inner.scopes = [first_variables({**inner.exported(), **environment})]
    inner.stdin = InputStream(None) if shell.stdin.text == text else shell.stdin
    try:
        status = inner.run_text(inner, text, file or shell.file, 1 if file else shell.line)
    except (ExitScript, ReturnFromFunction) as end:
        status = end.status
    return ended(inner, status)


def start_file(shell: BashProcess, words: list[str], environment: dict[str, str]) -> int:
    """`./run.sh`, or a program that nothing is known of."""
    path = words[0]
    if path in shell.functions or path == ":":
        return 0
    place = command_within(shell, words)
    if "/" in path or path.endswith(".sh"):
        try:
            found = script_text(shell, path)
        except NotReadable as error:
            shell.report_unread(f"{path} cannot be read: {error}")
            return 1
        if found is not None and not path.endswith(".py"):
            return start_text(shell, found[0], path, words[1:], environment, file=found[1])
        if path.endswith(".sh") and not place:
            shell.report_open(path, "", "the script lies only where this one runs; what it starts is not known")
    if path.endswith(".py"):
        return add_launch(shell, path, words[1:], environment)
    if place:
        note = "what it does is not known; taken to start the command after it"
        shell.report_open(" ".join(words[:place]), "", note)
        return within(shell, Wrapper(path), words[place:], environment)
    if shell.wrappers and len(words) > 1 and sum(OVERRIDE.fullmatch(word) is not None for word in words[1:]) > 1:
        return add_launch(shell, path, words[1:], environment)
    return 0


def start_python(shell: BashProcess, words: list[str], environment: dict[str, str]) -> int:
    """`python -u -m module words`, `python file words`."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "-m", "-c"):
        if words[at].startswith("-m") or words[at] in ("-V", "--version", "-h", "--help"):
            break
        if re.fullmatch(r"-[bBdEhiIOqsSuvVxP]+m", words[at]):
            words = [*words[:at], "-" + words[at][1:-1], "-m", *words[at + 1 :]]
        at += 2 if words[at] in ("-W", "-X") else 1
    rest = words[at:]
    if not rest or rest[0] in ("-c", "-", "-V", "--version", "-h", "--help"):
        return 0
    if rest[0].startswith("-m"):
        module = rest[0][2:] or (rest[1] if len(rest) > 1 else "")
        rest = rest[1 if rest[0][2:] else 2 :]
        if module in ALIASES:
            return start_launcher(shell, ALIASES[module], rest, environment)
        if module.startswith("accelerate"):
            return start_launcher(shell, "accelerate", rest[rest[:1] == ["launch"] :], environment)
        return add_launch(shell, module, rest, environment)
    return add_launch(shell, rest[0], rest[1:], environment)


def start_launcher(shell: BashProcess, name: str, words: list[str], environment: dict[str, str]) -> int:
    """torchrun, accelerate launch, deepspeed: options, then -m module or a file."""
    options, rest = split_options(words, VALUES[name])
    for flag in ("m", "module"):
        options.pop(flag, None)
    if not rest:
        return 0
    kept, shell.wrappers = shell.wrappers, (*shell.wrappers, Wrapper(name, options))
    try:
        if PYTHON.fullmatch(command_name(shell, rest[0])):
            return start_python(shell, rest[1:], environment)
        return add_launch(shell, rest[0], rest[1:], environment)
    finally:
        shell.wrappers = kept


def add_launch(shell: BashProcess, program: str, words: list[str], environment: dict[str, str]) -> int:
    """Keeps a launch: a program of Python that takes arguments of Hydra, or whose name is a trainer's."""
    reading = shell.reading
    visible = reading.visible
    found = {**shell.exported(), **environment}
    launch = Launch(
        shell.place,
        visible(program),
        tuple(visible(word) for word in words),
        {key: visible(value) for key, value in found.items()},
        tuple(replace(one, options={k: visible(v) for k, v in one.options.items()}) for one in shell.wrappers),
        visible(shell.folder),
    )
    trains = any(OVERRIDE.fullmatch(word) for word in words) or TRAINERS.fullmatch(program) is not None
    kept = reading.launches if trains else reading.others
    kept.append(launch)
    if len(kept) > LAUNCHES:
        raise StopReading(f"starts more than {LAUNCHES} programs")
    return 0
