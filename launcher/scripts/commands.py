"""Simple commands: assignments, redirects, and what the first word names."""

from __future__ import annotations

from collections.abc import Callable

from launcher.scripts.aliases import run_alias
from launcher.scripts.programs import starts
from launcher.scripts.programs.builtins import BUILTINS, declare_names, find_command
from launcher.scripts.programs.filters import FILTERS
from launcher.scripts.programs.line_filters import XARGS_ECHO
from launcher.scripts.programs.streams import UnknownOutput, input_text
from launcher.scripts.source import starts_program
from launcher.scripts.words.assignments import assign, assign_array, split_assignment
from launcher.scripts.words.ends import run_apart
from launcher.scripts.words.expand import expand_all, expand_fields, expand_quoted, expand_text
from launcher.scripts.words.files import known_text, write_file
from launcher.scripts.words.lexer import (
    ASSIGNMENT,
    ArrayWord,
    BashWord,
    Redirect,
    SimpleCommand,
    Substitution,
    UnreadableText,
    word_parts,
)
from launcher.scripts.words.patterns import Undecided
from launcher.scripts.words.state import FIRST_HEREDOC, BashProcess, ExitScript, InputStream, TextSink, Variable
from launcher.scripts.words.values import list_place

DECLARES = ("declare", "typeset", "local", "export", "readonly")
_QUIET = """
apt apt-get aws chmod chown clear conda cp date deactivate env export-env gcloud gsutil gunzip gzip hf hostname
huggingface-cli id ln locale logger mamba mkdir ml modelscope module mv pip pip3 printenv python3-config ray reset
rm rsync scancel scontrol sleep spack stty sync tar top touch tput uname unzip wandb whoami yum
"""
QUIET = frozenset(_QUIET.split())
"""Programs that start nothing here and are taken to succeed without a word about it."""
TELLS = frozenset("apropos diff find git grep kill killall man pgrep pkill ps vi vim which".split())  # noqa: SIM905
"""Programs that start no command that their words may name."""
ENDS = frozenset(["then", "elif", "else", "fi", "do", "done", "esac"])
"""Reserved words that never begin a command: one that does was taken from a statement by the grammar."""
Call = Callable[[BashProcess, str, list[str]], int]


def run_simple(shell: BashProcess, command: SimpleCommand, line: int, call: Call) -> int:
    """Runs one simple command; `call` runs a function. Raises nothing but what ends the shell or the reading."""
    shell.reading.step()
    texts = [word.text for word in command.words if isinstance(word, BashWord)]
    if texts not in (["return"], ["return", "$?"], ["return", '"$?"']):  # these hand on what was assumed before
        shell.assumed = ""
    shell.line, shell.substituted = line, False
    kept = dict(shell.sinks), shell.stdin, dict(shell.inputs)
    files: list[tuple[str, TextSink, bool]] = []
    keep = False
    try:
        redirect(shell, command.redirects, files)
        keep = [word.text for word in command.words if isinstance(word, BashWord)] == ["exec"]
        return run_words(shell, list(command.words), call)
    except (UnreadableText, Undecided) as error:
        shell.report_unread(str(error))
        return 1
    finally:
        if not keep:
            shell.sinks, shell.stdin, shell.inputs = kept
        for path, output, append in files:
            write_file(shell, path, output.text, append=append)


def redirect(shell: BashProcess, redirects: tuple[Redirect, ...], files: list[tuple[str, TextSink, bool]]) -> None:
    """Connects input and output; what is written to a file is collected in `files`."""
    for one in redirects:
        target = one.target.text
        if one.operator in ("<", "<<<", "<>", "<&"):
            stream = input_stream(shell, one.operator, target)
            if one.descriptor in ("", "0"):
                shell.stdin = stream
            else:
                shell.inputs[one.descriptor] = stream
            continue
        if target.startswith((">(", "<(")):
            sink: TextSink | None = None
            path = ""
        else:
            path = expand_text(shell, target)
            if one.operator == ">&" and (path.isdigit() or path == "-"):
                from_descriptor = int(one.descriptor or 1) if one.descriptor.isdigit() or not one.descriptor else 3
                shell.sinks[from_descriptor] = None if path == "-" else shell.sinks.get(int(path))
                continue
            if path in ("/dev/stdout", "/dev/fd/1", "/dev/stderr", "/dev/fd/2"):
                sink = shell.sinks.get(1 if path in ("/dev/stdout", "/dev/fd/1") else 2)
            elif path.startswith("/dev/"):
                sink = None
            else:
                sink = TextSink()
                files.append((path, sink, one.operator in (">>", "&>>")))
        both = one.operator in ("&>", "&>>") or (one.operator == ">&" and not one.descriptor)
        for number in (1, 2) if both else (int(one.descriptor) if one.descriptor.isdigit() else 1,):
            shell.sinks[number] = sink


def input_stream(shell: BashProcess, operator: str, target: str) -> InputStream:
    """What a command reads from `< file`, `<<EOF`, `<<< text` or `< <(commands)`."""
    if operator == "<<<":
        return InputStream(expand_text(shell, target) + "\n")
    if len(target) == 1 and ord(target) >= FIRST_HEREDOC:
        document = shell.reading.documents[ord(target) - FIRST_HEREDOC]
        return InputStream(document.text if document.literal else expand_quoted(shell, document.text, document=True))
    if target.startswith("<("):
        part = word_parts(target)[0]
        assert isinstance(part, Substitution)
        out = TextSink()
        run_apart(shell.subshell(), part.body, out)
        return InputStream(out.text)
    path = expand_text(shell, target)
    if path == "/dev/null":
        return InputStream("")
    if operator == "<&":
        return shell.inputs.get(path, InputStream(None)) if path != "0" else shell.stdin
    return InputStream(known_text(shell, path))


def run_words(shell: BashProcess, words: list[BashWord | ArrayWord], call: Call) -> int:
    """Assignments, then the command."""
    count = 0
    while count < len(words) and (isinstance(words[count], ArrayWord) or ASSIGNMENT.match(words[count].text)):  # type: ignore[union-attr]
        count += 1
    before, rest = words[:count], words[count:]
    if not before and len(rest) > 1 and isinstance(rest[0], BashWord) and rest[0].text == "time":  # a reserved word
        return run_words(shell, rest[2 if isinstance(rest[1], BashWord) and rest[1].text == "-p" else 1 :], call)
    if not rest:
        for word in before:
            if isinstance(word, ArrayWord):
                assign_array(shell, word)
            else:
                assign(shell, word.text)
        return shell.status if shell.substituted else 0
    first = rest[0]
    if isinstance(first, BashWord) and first.text in ENDS:
        raise UnreadableText(f"syntax of bash that cannot be read: {first.text!r} as a command")
    if isinstance(first, BashWord) and first.text in shell.aliases and "expand_aliases" in shell.options:
        return run_alias(shell, first.text, [word.text for word in (*before, *rest) if isinstance(word, BashWord)])
    if isinstance(first, BashWord) and first.text in DECLARES:
        return declaration(shell, first.text, rest[1:])
    for word in rest:
        if isinstance(word, ArrayWord):
            raise UnreadableText(f"{word.name}=( after a command")
    named = len(shell.reading.open)
    listed = isinstance(first, BashWord) and (
        first.text == "set" or first.text in shell.functions or starts_program(first.text)
    )
    sets = [word.text for word in rest[:2] if isinstance(word, BashWord)] == ["printf", "-v"]
    files = sets or shell.sinks.get(1) is not None  # the names of files that match become text
    fields = expand_all(shell, [word for word in rest if isinstance(word, BashWord)], listed=listed, files=files)
    if fields and (fields[0] in FILTERS or fields[0] in QUIET or fields[0] in ("[", "test")) and not shell.sinks.get(1):
        shell.forget_unset(named)
    environment = {}
    shell.scopes.append({})
    try:
        for word in before:
            if isinstance(word, BashWord):
                name, _, append, text = split_assignment(word.text)
                environment[name] = ((shell.get(name) or "") if append else "") + expand_text(shell, text)
                shell.scopes[-1][name] = Variable({0: environment[name]})  # the next one may name it
    finally:
        shell.scopes.pop()
    if not fields:
        for name, value in environment.items():
            shell.set(name, value)
        return shell.status if shell.substituted else 0
    return run_fields(shell, fields, environment, call)


def declaration(shell: BashProcess, name: str, words: list[BashWord | ArrayWord]) -> int:
    """declare, local, export, readonly: assignments in it are not split.

    As in bash, `name=value` has its effect once all words are expanded, `name=( ... )` at once."""
    flags, without = {"export": "x", "readonly": "r"}.get(name, ""), ""
    local = name == "local" or (name in ("declare", "typeset") and bool(shell.calls))
    operands: list[tuple[str, bool]] = []  # with whether it stands as an assignment in the script
    for word in words:
        if isinstance(word, ArrayWord):
            variable = shell.declare(word.name, local=local)
            declare_names(shell, [word.name], flags.replace("r", ""), local=local)
            if not word.append:
                variable.values = {}
            assign_array(shell, word)
            declare_names(shell, [word.name], flags, local=local)
            continue
        if ASSIGNMENT.match(word.text):
            target, subscript, append, text = split_assignment(word.text)
            value = expand_text(shell, text)
            where = f"{target}[{subscript}]" if subscript is not None else target
            operands.append((f"{where}{'+' * append}={value}", True))
            continue
        for field in expand_fields(shell, word.text):
            if field[:1] in ("-", "+") and len(field) > 1:
                without += field[1:] if field[0] == "+" else "x" * (name == "export" and "n" in field)
                flags += field[1:] if field[0] == "-" else ""
                flags = flags.replace("n", "") if name == "export" else flags
                local = local and "g" not in flags
            else:
                operands.append((field, False))
    return declare_operands(shell, operands, flags, without, local=local)


def declare_operands(
    shell: BashProcess, operands: list[tuple[str, bool]], flags: str, without: str, *, local: bool
) -> int:
    """What a declaration does with its expanded words, after its options."""
    status = 0
    for text, assigns in operands:
        if assigns:
            declare_names(shell, [text], flags, local=local, without=without)
        elif asks(flags, without):
            function = "f" in flags or "F" in flags
            known = text in shell.functions if function else shell.variable(text) or shell.is_open_name(text)
            status = status if known else 1
        elif "f" in flags:
            (shell.exported_functions.discard if "x" in without else shell.exported_functions.add)(text)
        else:
            declare_names(shell, [text], flags, local=local, without=without)
    if asks(flags, without):
        shell.write_unknown()
    return status


def asks(flags: str, without: str) -> bool:
    """Whether `declare` with these letters only shows what there is."""
    return "p" in flags or "F" in flags or ("f" in flags and "x" not in flags + without)


def run_fields(shell: BashProcess, fields: list[str], environment: dict[str, str], call: Call) -> int:
    """The command that expanded words name."""
    name, *words = fields
    while name in ("command", "builtin", "exec") and name not in shell.functions:
        if name == "command" and words[:1] in (["-v"], ["-V"]):
            return find_command(shell, words[1:])
        if not words:
            return 0
        if name == "exec":
            while words and words[0].startswith("-"):
                words = words[2 if words[0] == "-a" else 1 :]
            status = run_fields(shell, words, environment, call) if words else 0
            shell.exit_trap = ""
            raise ExitScript(status)
        if words[0] == "-p":
            words = words[1:]
        name, *words = words or [":"]
    lists = list_place(shell, words) < len(words)
    if lists and name not in shell.functions and name != "set":
        words = as_arguments(shell, name, words)
    if name in shell.functions or name in BUILTINS:
        shell.scopes.append({key: Variable({0: value}, exported=True) for key, value in environment.items()})
        depth = len(shell.scopes)
        try:
            if name in shell.functions:
                return call(shell, name, words)
            shell.unset_seen = name not in ("[", "test")
            return BUILTINS[name](shell, words)
        finally:
            shell.unset_seen = True
            del shell.scopes[depth - 1 :]
    if name in FILTERS and (name != "xargs" or words in XARGS_ECHO):
        try:
            if lists and name != "echo":
                raise UnknownOutput
            return FILTERS[name](shell, words)
        except UnknownOutput:
            if name == "printf" and words[:1] == ["-v"] and len(words) > 1:
                shell.set(words[1], shell.open_value(f"printf -v {words[1]}", "{" + f"printf -v {words[1]}" + "}"))
                return 0
            shell.write_unknown()
            shell.assumed = f"{name} is assumed to succeed"
            return 0
    if name == "tee":
        return tee(shell, words)
    if starts.starts_something(shell, [name, *words]) or "/" in name or name.endswith((".sh", ".py")):
        return starts.start(shell, [name, *words], environment)
    if name == "parallel" and any(starts_program(word) for word in words):
        raise UnreadableText("parallel: the commands that it makes are not read")
    if name not in QUIET | TELLS and starts.command_within(shell, [name, *words]):
        return starts.start(shell, [name, *words], environment)
    shell.write_unknown()
    if name not in QUIET:
        shell.assumed = f"{shell.reading.visible(name)} is assumed to succeed"
    return 0


def as_arguments(shell: BashProcess, name: str, words: list[str]) -> list[str]:
    """Words with one value for each open part that may be several; of what starts programs each of them is named."""
    for word in words:
        if shell.reading.is_list(word) and starts_program(name):
            shell.report_open(
                shell.reading.visible(word), "", "any number of words; only running the script tells them"
            )
    return [shell.reading.as_one(word) for word in words]


def tee(shell: BashProcess, words: list[str]) -> int:
    """Hands on its input, and writes it to files."""
    try:
        text: str | None = input_text(shell)
    except UnknownOutput:
        text = None
        shell.write_unknown()
    for word in words:
        if not word.startswith("-"):
            write_file(shell, word, text, append="-a" in words)
    if text is not None:
        shell.write(text)
    return 0
