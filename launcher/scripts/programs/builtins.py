"""What bash does itself: cd, set, shift, read, getopts, source, eval, ..."""

from __future__ import annotations

import re
from collections.abc import Callable

from launcher.scripts.programs.conditions import TestCommand
from launcher.scripts.words.arithmetic import BadArithmetic, evaluate
from launcher.scripts.words.assignments import assign_value, split_assignment
from launcher.scripts.words.ends import returned
from launcher.scripts.words.expand import element_key
from launcher.scripts.words.files import NotReadable, normal_path, script_text
from launcher.scripts.words.lexer import NAME, UnreadableText
from launcher.scripts.words.parameters import OPTION_LETTERS
from launcher.scripts.words.state import (
    BashProcess,
    ExitScript,
    InputStream,
    LeaveLoop,
    ReturnFromFunction,
    StopReading,
    Variable,
    is_open,
)
from launcher.scripts.words.values import as_list, field_list, list_place, may_split, separators_of

UNKNOWN_NAMES = "which variables it sets is known only where the script runs"
ENVIRONMENTS = re.compile(r"^\{\S*(conda|mamba|micromamba|ssh-agent|direnv|pyenv|brew|modulecmd|lmod|dircolors|uv)\b")
"""What `eval "$(conda shell.bash hook)"` and its like run: they set up a shell."""
MESSAGE = "the file lies only where the script runs; what it sets is not known"


def status_of(shell: BashProcess, words: list[str], default: int) -> int:
    """The number after exit, return, break, ..."""
    if not words or is_open(words[0]):
        return default
    if not re.fullmatch(r"-?\d{1,9}", words[0]):
        raise UnreadableText(f"{words[0][:40]!r} is not a number")
    return int(words[0])


def cd(shell: BashProcess, words: list[str]) -> int:
    words = [word for word in words if word not in ("-P", "-L", "--", "-e")]
    if words[:1] == ["-"]:
        path = shell.get("OLDPWD") or shell.folder
    else:
        path = words[0] if words else shell.get("HOME") or shell.open_value("~", "{HOME}")
    if path:
        before, shell.folder = shell.folder, normal_path(shell, path)
        shell.set("OLDPWD", before)
    return 0


def pushd(shell: BashProcess, words: list[str]) -> int:
    stack = shell.declare("DIRSTACK", local=False)
    stack.kind = "indexed"
    stack.values[len(stack.values)] = shell.folder
    return cd(shell, words[:1])


def popd(shell: BashProcess, words: list[str]) -> int:
    stack = shell.variable("DIRSTACK")
    if stack is None or not stack.values:
        return 1
    shell.folder = stack.values.pop(len(stack.values) - 1)
    return 0


def pwd(shell: BashProcess, words: list[str]) -> int:
    shell.write(shell.folder + "\n")
    return 0


def set_options(shell: BashProcess, words: list[str]) -> int:
    at = 0
    while at < len(words):
        word = words[at]
        if word in ("--", "-"):
            shell.arguments = words[at + 1 :]
            return 0
        if len(word) < 2 or word[0] not in "-+":
            shell.arguments = words[at:]
            return 0
        names = [OPTION_LETTERS.get(letter, "") for letter in word[1:] if letter != "o"]
        if "o" in word[1:] and at + 1 < len(words):
            at += 1
            names.append(words[at])
        for name in names:
            (shell.options.add if word[0] == "-" else shell.options.discard)(name)
        at += 1
    return 0


def shift(shell: BashProcess, words: list[str]) -> int:
    count = status_of(shell, words, 1)
    first = list_place(shell, shell.arguments)
    if first < min(count, len(shell.arguments)):
        shell.arguments = shell.arguments[first:]
        return 0
    if count > len(shell.arguments) or count < 0:
        return 1
    shell.arguments = shell.arguments[count:]
    return 0


def unset(shell: BashProcess, words: list[str]) -> int:
    functions = "-f" in words
    for word in words:
        if word.startswith("-"):
            continue
        name, bracket, rest = word.partition("[")
        if functions or (word in shell.functions and shell.variable(word) is None):
            shell.functions.pop(word, None)
        elif bracket:
            variable = shell.variable(name)
            if variable is not None:
                variable.values.pop(element_key(shell, name, rest.rstrip("]").strip("'\"")), None)
        else:
            own = len(shell.scopes) - 2  # the last one is that of this command
            shell.unset(name if "-n" in words else shell.target(name), own=own)
    return 0


def let(shell: BashProcess, words: list[str]) -> int:
    return arithmetic_status(shell, words)


def arithmetic_status(shell: BashProcess, expressions: list[str]) -> int:
    """Status of `let` and `(( ))`: 0 where the last value is not 0."""
    value: int | None = 0
    for expression in expressions:
        try:
            value = evaluate(shell, expression)
        except BadArithmetic as error:
            raise UnreadableText(f"arithmetic: {error}") from error
    if value is None:
        shell.assumed = "a number that only running could tell; taken as not 0"
        return 0
    return 0 if value else 1


def test(shell: BashProcess, words: list[str]) -> int:
    truth = TestCommand(shell, words).truth()
    shell.assumed = truth.assumed
    return 0 if truth.value else 1


def bracket(shell: BashProcess, words: list[str]) -> int:
    if words[-1:] != ["]"]:
        raise UnreadableText("a ] is missing")
    return test(shell, words[:-1])


def leave(shell: BashProcess, words: list[str]) -> int:
    raise ExitScript(status_of(shell, words, shell.status))


def come_back(shell: BashProcess, words: list[str]) -> int:
    raise ReturnFromFunction(status_of(shell, words, shell.status))


def leave_loop(shell: BashProcess, words: list[str], *, again: bool) -> int:
    if shell.loops:
        raise LeaveLoop(min(max(status_of(shell, words, 1), 1), shell.loops), again)
    return 0


def run_eval(shell: BashProcess, words: list[str]) -> int:
    if words and is_open(words[0][:1]) and not ENVIRONMENTS.search(shell.reading.visible(words[0])):
        shell.report_open(f"eval {words[0]}", "", "what it sets or starts is known only where the script runs")
    return shell.run_text(shell, " ".join(words), shell.file, shell.line)


def source(shell: BashProcess, words: list[str]) -> int:
    if not words:
        return 2
    path, *arguments = words
    try:
        found = script_text(shell, path)
    except NotReadable as error:
        shell.report_unread(f"{path} cannot be read: {error}")
        return 1
    if found is None:
        if path.rpartition("/")[2] != "activate":
            shell.report_open(f"source {path}", "", MESSAGE)
        return 0
    text, name = found
    kept = shell.arguments
    if arguments:
        shell.arguments = arguments
    try:
        try:
            status = shell.run_text(shell, text, name, 1)
        except ReturnFromFunction as back:
            status = back.status
        return returned(shell, status)
    finally:
        if arguments:
            shell.arguments = kept


def getopts(shell: BashProcess, words: list[str]) -> int:
    """One option at a time, as POSIX has it."""
    if len(words) < 2:
        return 2
    letters, name, *given = words
    arguments = given or shell.arguments
    place = int(shell.get("OPTIND") or 1)
    column = shell.getopts_column
    word = arguments[place - 1] if place <= len(arguments) else ""
    if not column and (len(word) < 2 or word[0] != "-" or word == "--" or is_open(word[:1])):
        shell.set("OPTIND", str(place + (word == "--")))
        shell.set(name, "?")
        return 1
    letter = word[column or 1]
    column = (column or 1) + 1
    quiet = letters.startswith(":")
    known = letter in letters and letter != ":"
    shell.unset("OPTARG")
    if not known:
        if quiet:
            shell.set("OPTARG", letter)
        letter = "?"
    elif letters[letters.index(letter) + 1 :].startswith(":"):
        if column < len(word):
            shell.set("OPTARG", word[column:])
        elif place < len(arguments):
            place += 1
            shell.set("OPTARG", arguments[place - 1])
        else:
            shell.set("OPTARG", letter if quiet else "")
            letter = ":" if quiet else "?"
        column = len(word)
    if column >= len(word):
        place, column = place + 1, 0
    shell.getopts_column = column
    shell.set("OPTIND", str(place))
    shell.set(name, letter)
    return 0


def read(shell: BashProcess, words: list[str]) -> int:
    """`read -r -d x -a array name ...`."""
    raw, delimiter, array, asks, left, stream = False, "\n", "", False, list(words), shell.stdin
    closed = False
    while left and left[0].startswith("-") and len(left[0]) > 1:
        option = left.pop(0)
        for at, letter in enumerate(option[1:], start=1):
            if letter == "r":
                raw = True
            elif letter in "adinNptu":
                value = option[at + 1 :] or (left.pop(0) if left else "")
                delimiter = (value[:1] or "\0") if letter == "d" else delimiter
                array = value if letter == "a" else array
                asks |= letter == "p"
                if letter == "u" and value != "0":
                    stream = shell.inputs.get(value, InputStream(None))
                    closed = re.fullmatch("[3-9]", value) is not None and value not in shell.inputs
                if letter in "nN":
                    raise UnreadableText("read -n")
                break
    names = left or ["REPLY"]
    if closed:
        return 1
    if stream.text is None:
        if stream.read and not asks:
            return 1
        stream.read = True
        for name in [array] if array else names:
            shell.set(name, shell.open_value(f"read {name}", "{read " + name + "}"), key=0 if array else None)
        return 0
    rest = stream.text[stream.position :]
    line, mark, _ = rest.partition(delimiter)
    stream.position += len(line) + len(mark)
    shell.reading.step(1 + len(rest) // 5000)
    if not raw:
        line = re.sub(r"\\(.)", r"\1", line.replace("\\\n", ""), flags=re.DOTALL)
    separators = separators_of(shell)
    if array:
        fields = field_list(shell, listed=True)
        fields.split(line)
        fields.end()
        shell.declare(array, local=False).kind = "indexed"
        shell.declare(array, local=False).values = dict(enumerate(fields.fields))
    else:
        values = _divided(line, len(names), separators, whole=not left)
        first = next((at for at, value in enumerate(values) if may_split(shell, value, separators)), len(values))
        for at, (name, value) in enumerate(zip(names, values, strict=True)):
            if at >= first and first < len(names) - 1:
                value = shell.open_value(f"read {name}", "{read " + name + "}")
            assign_value(shell, name, value, None)
    return 0 if mark else 1


def _divided(line: str, count: int, separators: str, *, whole: bool) -> list[str]:
    """The line for so many variables; the last takes what remains."""
    if whole or not separators:
        return [line, *[""] * (count - 1)]
    white = "".join(c for c in separators if c in " \t\n")
    values, rest = [], line.lstrip(white) if white else line
    for _ in range(count - 1):
        found = re.match(f"[^{re.escape(separators)}]*", rest)
        assert found
        values.append(found[0])
        rest = rest[found.end() :]
        rest = rest.lstrip(white) if white else rest
        if rest[:1] and rest[0] in separators and rest[0] not in white:
            rest = rest[1:].lstrip(white) if white else rest[1:]
    rest = rest.rstrip(white) if white else rest
    marks = [c for c in separators if c not in " \t\n"]
    if rest[-1:] in marks and rest and not any(mark in rest[:-1] for mark in marks):
        rest = rest[:-1]
    return [*values, rest]


def mapfile(shell: BashProcess, words: list[str]) -> int:
    """`mapfile -t -n count -s skipped -O origin -d delimiter array`."""
    options, left = {"d": "\n", "n": "0", "s": "0"}, list(words)
    while left and re.match(r"-[a-zA-Z]", left[0]):
        option = left.pop(0)
        for at, letter in enumerate(option[1:], start=1):
            if letter not in "tdnsO":
                raise UnreadableText(f"mapfile {option}")
            options[letter] = "" if letter == "t" else option[at + 1 :] or (left.pop(0) if left else "")
            if letter != "t":
                break
    count, skipped, origin = (status_of(shell, [options.get(letter, "0")], -1) for letter in "nsO")
    if min(count, skipped, origin) < 0:
        raise UnreadableText("mapfile: a number that only running could tell, or below 0")
    name = left[0] if left else "MAPFILE"
    variable = shell.declare(name, local=False)
    variable.kind = "indexed"
    if "O" not in options:
        variable.values = {}
    text = shell.stdin.text
    if text is None:
        value = shell.open_value(f"mapfile {name}", "{mapfile " + name + "}")
        variable.values[origin] = shell.reading.list_character(value)
        return 0
    delimiter = options["d"][:1] or "\0"
    lines = [line + delimiter for line in text[shell.stdin.position :].split(delimiter)]
    last = lines.pop()[:-1]
    lines += [last] if last else []
    taken = lines[: skipped + count] if count else lines
    shell.stdin.position += sum(map(len, taken))
    kept = taken[skipped:]
    if len(kept) > 10_000:
        raise StopReading("mapfile reads more than 10,000 lines")
    if "t" in options:
        kept = [line.removesuffix(delimiter) for line in kept]
    variable.values.update(enumerate((as_list(shell, line) for line in kept), start=origin))
    return 0


def declare_names(shell: BashProcess, words: list[str], flags: str, *, local: bool, without: str = "") -> int:
    """export, declare, local, readonly: `flags` are the letters of their options, `without` those after a `+`.

    Words are names and assignments."""
    for word in words:
        if is_open(word[:1]):
            shell.report_open(f"{'export' if 'x' in flags else 'declare'} {word}", "", UNKNOWN_NAMES)
            continue
        if not re.match(r"[A-Za-z_]\w*(\[|\+?=|$)", word):
            raise UnreadableText(f"{word[:40]!r} is not a name")
        assigns = "=" in word
        name, subscript, append, value = split_assignment(word) if assigns else (word, None, False, "")
        if "n" in flags:
            if value and not NAME.fullmatch(value):
                raise UnreadableText(f"{name}: a reference to {value[:40]!r}, which is no plain name")
            shell.scopes[-1 if local else 0][name] = Variable({}, reference=value)
            continue
        if not assigns and shell.variable(name) is None and shell.is_open_name(name):
            continue
        variable = shell.declare(name, local=local)
        apply_flags(variable, flags)
        variable.exported = variable.exported and "x" not in without
        variable.integer = variable.integer and "i" not in without
        if assigns:
            readonly, variable.readonly = variable.readonly and "r" not in flags, False
            assign_value(shell, name, value, subscript, append=append)
            variable.readonly = readonly or "r" in flags
    return 0


def apply_flags(variable: Variable, flags: str) -> None:
    """The attributes that the letters of `declare` give."""
    variable.exported = variable.exported or "x" in flags
    variable.integer = variable.integer or "i" in flags
    variable.readonly = variable.readonly or "r" in flags
    if "A" in flags and not variable.values:
        variable.kind = "associative"
    elif "a" in flags and variable.kind == "scalar":
        variable.kind = "indexed"
    variable.case = "lower" if "l" in flags else "upper" if "u" in flags else variable.case


def find_command(shell: BashProcess, words: list[str]) -> int:
    """`command -v`, `type`, `which`, `hash`: whether a program is there."""
    names = [word for word in words if not word.startswith("-")]
    if any(name in shell.functions or name in BUILTINS for name in names):
        shell.write("".join(f"{name}\n" for name in names))
        return 0
    shell.write_unknown()
    shell.assumed = f"whether {' '.join(names)} is installed is known only where the script runs; assumed to be"
    return 0


def shell_option(shell: BashProcess, words: list[str]) -> int:
    for word in words[1:]:
        (shell.options.add if words[0] == "-s" else shell.options.discard)(word)
    return 0


def assumed(shell: BashProcess, words: list[str]) -> int:
    shell.assumed = "whether a process still runs is known only where the script runs"
    return 0


def trap(shell: BashProcess, words: list[str]) -> int:
    """What runs at the end is kept; signals are not read."""
    words = words[words[:1] == ["--"] :]
    words = words if len(words) > 1 else ["-", *words]
    if len(words) > 1 and not words[0].startswith("-l") and {"EXIT", "exit", "0"} & set(words[1:]):
        shell.exit_trap = "" if words[0] == "-" else words[0]
    if {"ERR", "err"} & set(words[1:]):
        shell.error_trap = "" if words[0] == "-" else words[0]
    if "DEBUG" in words[1:] and words[0] not in ("", "-"):
        shell.report_open("trap ... DEBUG", "", "what it runs before each command is not read")
    if {"RETURN", "return"} & set(words[1:]):
        shell.return_trap = "" if words[0] == "-" else words[0]
    return 0


def nothing(shell: BashProcess, words: list[str]) -> int:
    return 0


BUILTINS: dict[str, Callable[[BashProcess, list[str]], int]] = {
    ".": source, ":": nothing, "[": bracket, "break": lambda shell, words: leave_loop(shell, words, again=False),
    "cd": cd, "chdir": cd, "continue": lambda shell, words: leave_loop(shell, words, again=True), "eval": run_eval,
    "exit": leave, "false": lambda shell, words: 1, "getopts": getopts, "hash": find_command, "let": let,
    "mapfile": mapfile, "popd": popd, "pushd": pushd, "pwd": pwd, "read": read, "readarray": mapfile,
    "return": come_back, "set": set_options, "shift": shift, "source": source, "test": test,
    "trap": trap, "true": nothing, "type": find_command, "unset": unset, "which": find_command,
    **dict.fromkeys(("bg", "disown", "fg", "jobs", "ulimit", "umask"), nothing),
    "kill": assumed, "wait": nothing,
}  # fmt: skip
"""By name: (shell, expanded words) -> status."""
