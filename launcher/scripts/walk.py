"""Walks statements one after the other; `HANDLERS` has a function for each kind that is more than a simple command."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tree_sitter import Node

from launcher.scripts.commands import run_simple
from launcher.scripts.source import ScriptSource, parsed
from launcher.scripts.words.documents import without_documents
from launcher.scripts.words.ends import ended, returned
from launcher.scripts.words.lexer import BashWord, UnreadableText, simple_command
from launcher.scripts.words.patterns import Undecided
from launcher.scripts.words.state import DEPTH, BashProcess, ExitScript, LeaveLoop, ReturnFromFunction, StopReading

SIMPLE = frozenset(["command", "variable_assignment", "variable_assignments", "declaration_command", "unset_command"])
RESERVED = frozenset("if then elif else fi for while until do done case esac select function { } ;; ( ) in".split())  # noqa: SIM905
FAIL = SIMPLE | {"pipeline", "subshell", "test_command", "(("}
"""Statements of which a failure runs what `trap ... ERR` gave; others fail of one within them."""
HANDLERS: dict[str, Callable[[BashProcess, ScriptSource, Node], int]] = {}
"""By the grammar's name of a statement; filled where they are defined."""


def run_text(shell: BashProcess, text: str, file: str, line: int) -> int:
    """Runs text in the shell and returns its status. Raises ExitScript, ReturnFromFunction, LeaveLoop, StopReading."""
    reading = shell.reading
    reading.step(1 + len(text) // 500)
    if reading.depth >= DEPTH:
        raise StopReading(f"more than {DEPTH} functions, substitutions and files within each other")
    kept, kept_line, shell.file = shell.file, shell.line, file
    reading.depth += 1
    try:
        cleaned = without_documents(reading, text, line) if "<<" in text else text
        source = parsed(cleaned, file, line)
        return block(shell, source, source.root.children)
    finally:
        reading.depth -= 1
        shell.file, shell.line = kept, kept_line


def block(shell: BashProcess, source: ScriptSource, nodes: list[Node]) -> int:
    """Statements one after the other; those with `&` in a subshell."""
    try:
        return statements(shell, source, nodes)
    except StopReading:
        shell.reading.stopped_at = shell.reading.stopped_at or shell.place
        raise


def statements(shell: BashProcess, source: ScriptSource, nodes: list[Node]) -> int:
    """Runs them; what a simple command took beyond its node is not read again."""
    consumed = 0
    status = 0
    for number, node in enumerate(nodes):
        if (not node.is_named and node.type != "ERROR") or node.type == "comment" or source.start(node) < consumed:
            continue
        shell.line = source.line_at(source.start(node))
        shell.consumed, shell.consumed_source = 0, None  # of an earlier round of a loop, or another call
        if number + 1 < len(nodes) and nodes[number + 1].type == "&":
            inner = shell.subshell()
            with contextlib.suppress(ExitScript, LeaveLoop):
                statement(inner, source, node)
            ended(inner, inner.status)
            status, shell.consumed, shell.consumed_source = 0, inner.consumed, inner.consumed_source
        else:
            status = statement(shell, source, node)
            check_errexit(shell, status, failing_kind(node))
        shell.status = status
        consumed = max(consumed, shell.consumed if shell.consumed_source is source else 0)
    shell.consumed, shell.consumed_source = consumed, source
    return status


def failing_kind(node: Node) -> str:
    """What failed where a statement did: of `left && right`, when it counts, the last command; `((` of arithmetic."""
    while True:
        if node.type == "list":
            node = [child for child in node.children if child.type != "comment"][-1]
        elif node.type == "redirected_statement" and (body := node.child_by_field_name("body")):
            node = body
        else:
            break
    if node.type == "redirected_statement":
        return "command"
    return "((" if node.type == "compound_statement" and node.children[0].type == "((" else node.type


def check_errexit(shell: BashProcess, status: int, kind: str = "command") -> None:
    """What `trap ... ERR` runs, and the end of a shell under `set -e`; an assumed failure is named and has neither."""
    if not status or shell.inside_condition or shell.exempt or shell.assumed:
        return
    if shell.error_trap and kind in FAIL and not (shell.calls and "errtrace" not in shell.options):
        text, shell.error_trap, shell.status = shell.error_trap, "", status
        try:
            run_text(shell, text, shell.file, shell.line)
        finally:
            shell.error_trap, shell.status, shell.assumed, shell.exempt = text, status, "", False
    if "errexit" in shell.options:
        shell.report_unread("the command fails, and set -e ends the script there")
        raise ExitScript(status)


def statement(shell: BashProcess, source: ScriptSource, node: Node) -> int:
    """Runs one node and returns its status."""
    kind = node.type
    shell.exempt = False
    if is_simple(node):
        return simple(shell, source, node)
    if kind == "ERROR":
        return unread(shell, source, node)
    if kind not in HANDLERS:
        shell.report_unread(f"{kind.replace('_', ' ')} is not read: {source.text_of(node)[:60]!r}")
        return 0
    if any(child.is_missing or (child.type == "ERROR" and kind not in ("list", "pipeline")) for child in node.children):
        shell.report_unread(f"syntax of bash that cannot be read: {source.text_of(node)[:60]!r}")
        raise ExitScript(2)
    shell.reading.depth += 1
    try:
        if shell.reading.depth > 3 * DEPTH:
            raise StopReading(f"more than {3 * DEPTH} statements within each other")
        handler = HANDLERS["redirected_part" if node.id in source.redirected else kind]
        if source.negates(node):
            return negated(shell, lambda: handler(shell, source, node))
        return handler(shell, source, node)
    except (UnreadableText, Undecided) as error:
        shell.report_unread(str(error))
        return 1
    finally:
        shell.reading.depth -= 1


def is_simple(node: Node) -> bool:
    """Whether it is a simple command, whose words and redirects are read from the text."""
    return node.type in SIMPLE or (node.type == "test_command" and node.children[0].type == "[")


def negated(shell: BashProcess, run: Callable[[], int]) -> int:
    """`! command`: its failure ends no shell."""
    shell.inside_condition += 1
    try:
        status = run()
    finally:
        shell.inside_condition -= 1
    shell.exempt = True
    return int(not status)


def simple(shell: BashProcess, source: ScriptSource, node: Node, begin: int | None = None) -> int:
    """A simple command: its words are read from the text, where the grammar joins or cuts some."""
    begin = source.start(node) if begin is None else begin
    try:
        command = simple_command(source.text, begin)
    except UnreadableText as error:
        shell.report_unread(str(error))
        raise ExitScript(2) from error
    status = run_simple(shell, command, source.line_at(begin), call_function)
    shell.pipe_status = [status]
    shell.consumed, shell.consumed_source = command.end, source
    rest = source.text[command.end : source.end(node)]
    if rest.strip() and rest.lstrip(" \t")[:1] in "#\n;":
        shell.status = status
        check_errexit(shell, status)
        status = run_text(shell, rest, source.file, source.line_at(command.end))
        shell.consumed, shell.consumed_source = source.end(node), source
    return status


def unread(shell: BashProcess, source: ScriptSource, node: Node) -> int:
    """What the grammar cannot place: statements before the place are run, and unusual words are read all the same."""
    text = source.text_of(node)
    if node.children and (node.children[0].type in SIMPLE or node.children[0].type in HANDLERS):
        for number, child in enumerate(node.children):
            if child.type in RESERVED or child.type in ("ERROR", "&&", "||", "|") or child.is_missing:
                statements(shell, source, node.children[:number])
                shell.line = source.line_at(source.start(child))
                shell.report_unread(f"syntax of bash that cannot be read: {text[-60:]!r}")
                raise ExitScript(2)
        return statements(shell, source, node.children)
    try:
        command = simple_command(source.text, source.start(node))
    except UnreadableText:
        command = None
    first = command.words[0] if command and command.words else None
    if (
        command is None
        or not isinstance(first, BashWord)
        or first.text in RESERVED
        or "\n" in source.text[command.end : source.end(node)]
    ):
        shell.report_unread(f"syntax of bash that cannot be read: {text[:60]!r}")
        raise ExitScript(2)
    return simple(shell, source, node)


def call_function(shell: BashProcess, name: str, words: list[str]) -> int:
    """A function with its arguments and its own local variables."""
    source, body, file = shell.functions[name]
    assert isinstance(source, ScriptSource) and isinstance(body, Node)
    if len(shell.calls) >= DEPTH:
        raise StopReading(f"{name}: more than {DEPTH} functions within each other")
    kept = shell.arguments, shell.file, shell.loops, shell.consumed, shell.consumed_source, shell.line
    shell.arguments, shell.file, shell.loops = words, file, 0
    shell.calls.append(name)
    shell.scopes.append({})
    depth = len(shell.scopes)
    trap = "" if "functrace" in shell.options else shell.return_trap
    shell.return_trap = "" if trap else shell.return_trap  # a function does not have that of its caller
    try:
        try:
            status = statement(shell, source, body)
        except ReturnFromFunction as back:
            status = back.status
        return returned(shell, status)
    except ReturnFromFunction as back:  # of the trap itself
        return back.status
    finally:
        shell.return_trap = shell.return_trap or trap
        del shell.scopes[depth - 1 :]
        shell.calls.pop()
        shell.arguments, shell.file, shell.loops, shell.consumed, shell.consumed_source, shell.line = kept
