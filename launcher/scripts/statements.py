"""Lists, pipelines, redirects, functions, subshells and groups."""

from __future__ import annotations

from collections.abc import Callable

from tree_sitter import Node

from launcher.scripts import control
from launcher.scripts.commands import redirect
from launcher.scripts.programs.builtins import arithmetic_status
from launcher.scripts.programs.conditions import DoubleBracket
from launcher.scripts.source import ScriptSource, ends_script, is_echo, matters
from launcher.scripts.walk import HANDLERS, block, is_simple, negated, run_text, simple, statement
from launcher.scripts.words.ends import ended
from launcher.scripts.words.expand import expand_quoted
from launcher.scripts.words.files import write_file
from launcher.scripts.words.lexer import simple_command
from launcher.scripts.words.state import BashProcess, ExitScript, InputStream, TextSink

__all__ = ["control", "run_text"]


def run_list(shell: BashProcess, source: ScriptSource, node: Node) -> int:
    """`left && right`, `left || right`."""
    left, operator, right = _sides(node)
    if operator == "||" and left.type == "list" and shell.sinks.get(1) and is_echo(source, right):
        tested, inner, first = _sides(left)
        if inner == "&&" and is_echo(source, first):
            return one_of_two(shell, source, tested, first, right)
    shell.inside_condition += 1
    try:
        status = statement(shell, source, left)
    finally:
        shell.inside_condition -= 1
    shell.status = status
    if shell.assumed:
        why = shell.assumed
        if ends_script(shell, source, right):
            status = 0 if operator == "||" else 1
        if matters(source, right):
            runs = "is read" if (status == 0) == (operator == "&&") else "is left out"
            shell.report_open(source.text_of(left), "", f"{why}; what follows {operator} {runs}")
        shell.assumed = ""
    if (status == 0) != (operator == "&&"):
        shell.exempt = True
        return status
    return statement(shell, source, right)


def _sides(node: Node) -> tuple[Node, str, Node]:
    parts = [child for child in node.children if child.type != "comment"]
    return parts[0], parts[1].type, parts[-1]


def one_of_two(shell: BashProcess, source: ScriptSource, tested: Node, first: Node, second: Node) -> int:
    """`$(tested && echo first || echo second)`: where only running could tell the answer, it is one of two."""
    status = control.condition(shell, source, [tested])
    shell.status = status
    if not shell.assumed:
        return statement(shell, source, second if status else first)
    texts = []
    for each in (second, first):  # without the program or file that is asked for, as on another machine
        inner, out = shell.subshell(), TextSink()
        inner.sinks[1] = out
        statement(inner, source, each)
        texts.append(out.text or "")
    sink = shell.sinks[1]
    assert sink is not None
    sink.known = False
    sink.choices.append(tuple(texts))
    shell.assumed = ""
    shell.consumed, shell.consumed_source = source.end(second), source
    return 0


def pipeline(shell: BashProcess, source: ScriptSource, node: Node) -> int:
    """Each command in a subshell, with the output of the one before."""
    stages = [child for child in node.children if child.is_named and child.type != "comment"]
    statuses = []
    stream = shell.stdin
    inverted = False
    assumed = ""
    for number, stage in enumerate(stages):
        if number == 0 and stage.type == "negated_command":
            inverted, stage = True, stage.children[-1]
        if number == len(stages) - 1 and "lastpipe" in shell.options:
            statuses.append(last_stage(shell, source, stage, stream))
            assumed = shell.assumed
            break
        inner = shell.subshell()
        inner.stdin = stream
        inner.inside_condition += 1
        out = TextSink()
        if number < len(stages) - 1:
            inner.sinks = {**inner.sinks, 1: out}
        try:
            status = statement(inner, source, stage)
        except ExitScript as end:
            status = end.status
        statuses.append(ended(inner, status))
        assumed = inner.assumed
        stream = InputStream(out.text)
        if inner.consumed_source is source:
            shell.consumed, shell.consumed_source = max(inner.consumed, shell.consumed), source
    shell.pipe_status = statuses
    shell.assumed = assumed
    status = statuses[-1]
    if "pipefail" in shell.options:
        status = next((one for one in reversed(statuses) if one), 0)
    shell.exempt = inverted
    return int(not status) if inverted else status


def last_stage(shell: BashProcess, source: ScriptSource, stage: Node, stream: InputStream) -> int:
    """The last command of a pipeline under `shopt -s lastpipe`: in the shell itself."""
    kept, shell.stdin = shell.stdin, stream
    shell.inside_condition += 1
    try:
        return statement(shell, source, stage)
    finally:
        shell.stdin = kept
        shell.inside_condition -= 1


def negated_command(shell: BashProcess, source: ScriptSource, node: Node) -> int:
    return negated(shell, lambda: statement(shell, source, node.children[-1]))


def redirected(shell: BashProcess, source: ScriptSource, node: Node) -> int:
    """A statement with redirects: of a simple command they are read with its words.

    The grammar takes those after a pipeline or a list for all of it; in bash they are those of its last command."""
    body = node.child_by_field_name("body")
    if body is None or is_simple(body):
        return simple(shell, source, node)
    last = body
    while last.type in ("list", "pipeline", "negated_command"):
        last = [child for child in last.children if child.is_named and child.type != "comment"][-1]
    if last.id == body.id:
        return with_redirects(shell, source, body, lambda: statement(shell, source, body))
    if not is_simple(last) and last.type != "redirected_statement":
        source.redirected.add(last.id)
    return statement(shell, source, body)


def redirected_part(shell: BashProcess, source: ScriptSource, node: Node) -> int:
    """The last command of a pipeline or a list, where redirects follow that are its own."""
    return with_redirects(shell, source, node, lambda: HANDLERS[node.type](shell, source, node))


def with_redirects(shell: BashProcess, source: ScriptSource, body: Node, run: Callable[[], int]) -> int:
    """Runs with the redirects that stand after `body`."""
    command = simple_command(source.text, source.end(body))
    kept = dict(shell.sinks), shell.stdin, dict(shell.inputs)
    files: list[tuple[str, TextSink, bool]] = []
    shell.line = source.line_at(source.end(body))
    try:
        redirect(shell, command.redirects, files)
        status = run()
    finally:
        shell.sinks, shell.stdin, shell.inputs = kept
        for path, output, append in files:
            write_file(shell, path, output.text, append=append)
    shell.consumed, shell.consumed_source = command.end, source
    return status


def function_definition(shell: BashProcess, source: ScriptSource, node: Node) -> int:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    assert name is not None and body is not None
    shell.functions[source.text_of(name)] = (source, body, shell.file)
    return 0


def subshell(shell: BashProcess, source: ScriptSource, node: Node) -> int:
    inner = shell.subshell()
    try:
        status = block(inner, source, node.children)
    except ExitScript as end:
        status = end.status
    shell.assumed = inner.assumed
    return ended(inner, status)


def compound(shell: BashProcess, source: ScriptSource, node: Node) -> int:
    """`{ ... }` and `(( ... ))`."""
    if node.children[0].type != "((":
        return block(shell, source, node.children)
    text = source.text[source.start(node) + 2 : source.end(node) - 2]
    shell.assumed = ""
    return arithmetic_status(shell, [expand_quoted(shell, text)])


def double_bracket(shell: BashProcess, source: ScriptSource, node: Node) -> int:
    opening, closing = node.children[0].type, node.children[-1]
    text = source.text[source.start(node) + 2 : source.start(closing)]
    shell.assumed = ""
    if opening == "((":
        return arithmetic_status(shell, [expand_quoted(shell, text)])
    shell.unset_seen = False
    try:
        truth = DoubleBracket(shell, text).truth()
    finally:
        shell.unset_seen = True
    shell.assumed = truth.assumed
    shell.pipe_status = [int(not truth.value)]
    return shell.pipe_status[0]


HANDLERS.update(
    list=run_list,
    pipeline=pipeline,
    negated_command=negated_command,
    redirected_statement=redirected,
    redirected_part=redirected_part,
    function_definition=function_definition,
    subshell=subshell,
    compound_statement=compound,
    test_command=double_bracket,
    do_group=lambda shell, source, node: block(shell, source, node.children),
    comment=lambda shell, source, node: 0,
)
