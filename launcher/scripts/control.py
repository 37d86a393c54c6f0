"""if, while, until, for, case. Of a condition that only running could tell, one branch is taken, and named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tree_sitter import Node

from launcher.scripts.programs.builtins import arithmetic_status
from launcher.scripts.programs.conditions import Truth, either, pattern_matches, possible_values
from launcher.scripts.rounds import Values, left_open, values_of
from launcher.scripts.source import ScriptSource, ends_script, launches, leaves_loop, waits
from launcher.scripts.walk import HANDLERS, block
from launcher.scripts.words.expand import expand_all, expand_pattern, expand_quoted, expand_text
from launcher.scripts.words.lexer import BashWord, UnreadableText, simple_command, skip_blanks, word_end
from launcher.scripts.words.state import ITERATIONS, BashProcess, ExitScript, LeaveLoop, StopReading, is_open
from launcher.scripts.words.values import list_place


def condition(shell: BashProcess, source: ScriptSource, nodes: list[Node]) -> int:
    """Runs what stands after if, elif, while."""
    shell.inside_condition += 1
    try:
        return block(shell, source, nodes)
    finally:
        shell.inside_condition -= 1


def if_statement(shell: BashProcess, source: ScriptSource, node: Node) -> int:
    """Branches in order; of a condition that only running could tell, the branch that goes on is taken, and named."""
    clauses: list[tuple[list[Node], list[Node]]] = []
    otherwise: list[Node] = []
    _clauses(node, clauses)
    for child in node.children:
        if child.type == "elif_clause":
            _clauses(child, clauses)
        elif child.type == "else_clause":
            otherwise = child.children
    for number, (tested, body) in enumerate(clauses):
        shell.assumed = ""
        begun = len(shell.reading.launches)
        status = condition(shell, source, tested)
        shell.status = status
        if shell.assumed:
            rest = [part for _, later in clauses[number + 1 :] for part in later] + otherwise
            trained = len(shell.reading.launches) > begun
            status = decided(shell, source, status, tested, body, rest, trained=trained)
        if status == 0:
            return block(shell, source, body)
    shell.assumed = ""
    return block(shell, source, otherwise) if otherwise else 0


def _clauses(node: Node, clauses: list[tuple[list[Node], list[Node]]]) -> None:
    tested: list[Node] = []
    body: list[Node] = []
    into: list[Node] | None = None
    for child in node.children:
        if child.type in ("if", "elif"):
            into = tested
        elif child.type == "then":
            into = body
        elif child.type in ("elif_clause", "else_clause", "fi"):
            break
        elif into is not None:
            into.append(child)
    clauses.append((tested, body))


def decided(
    shell: BashProcess, source: ScriptSource, status: int, tested: list[Node], body: list[Node], rest: list[Node],
    *, trained: bool,
) -> int:  # fmt: skip
    """The status to go on with where it is only assumed: not into a branch that ends the script or starts nothing.

    After a launch in the condition itself (`trained`), a branch that launches is for one that failed."""
    why = shell.assumed
    taken, other = (body, rest) if status == 0 else (rest, body)
    starts, starts_other = launches(shell, source, *taken), launches(shell, source, *other)
    if ends_script(shell, source, *taken) and not starts:
        status, why = int(not status), "the other branch ends the script"
    elif shell.loops and starts != starts_other and leaves_loop(source, *(taken if starts else other)):
        if starts_other:
            status, why = int(not status), "the other branch starts nothing"
    elif shell.loops and leaves_loop(source, *taken) != leaves_loop(source, *other):
        if leaves_loop(source, *taken) != (len(shell.reading.launches) > shell.leave_after):
            status, why = int(not status), "a loop is left after its launches, and one that only waits at once"
    elif starts_other and not starts and not trained:
        status, why = int(not status), "the other branch starts nothing"
    text = " ".join(source.text_of(one) for one in tested if one.is_named)
    shell.line = source.line_at(source.start(tested[0])) if tested else shell.line
    shell.report_open(text, "", f"{why}; taken as {'true' if status == 0 else 'false'}")
    shell.assumed = ""
    return status


def loop_body(shell: BashProcess, source: ScriptSource, nodes: list[Node], leave_after: int = 1 << 30) -> bool:
    """Runs the body once; whether the loop goes on."""
    shell.loops += 1
    kept, shell.leave_after = shell.leave_after, leave_after
    try:
        block(shell, source, nodes)
    except LeaveLoop as leave:
        shell.status = 0
        if leave.levels > 1:
            raise LeaveLoop(leave.levels - 1, leave.again) from leave
        return leave.again
    finally:
        shell.loops -= 1
        shell.leave_after = kept
    return True


def while_statement(shell: BashProcess, source: ScriptSource, node: Node) -> int:
    """while and until; a condition that only running could tell ends the loop."""
    until = node.children[0].type == "until"
    body = node.child_by_field_name("body")
    assert body is not None
    tested = [child for child in node.children[1:] if child.id != body.id]
    line = source.line_at(source.start(node))
    begun = len(shell.reading.launches)
    leave_after = begun if launches(shell, source, body) else -1
    unread = [one for one in (shell.stdin, *shell.inputs.values()) if one.text is None and not one.read]
    before = values_of(shell) if unread else {}
    for _ in range(ITERATIONS):
        shell.reading.step()
        shell.assumed = ""
        status = condition(shell, source, tested)
        if any(one.read for one in unread):
            return lines_of_a_program(shell, source, node, tested, before)
        if shell.assumed:
            shell.line = line
            text = " ".join(source.text_of(one) for one in tested if one.is_named)
            shell.report_open(text, "", f"{shell.assumed}; the loop is left there")
            shell.assumed = ""
            return 0
        if (status == 0) == until:
            return 0
        if not loop_body(shell, source, body.children, leave_after):
            return 0
        if len(shell.reading.launches) > begun + 20 and status == 0:
            break
    shell.line = line
    forever = " ".join(source.text_of(one) for one in tested if one.is_named) in (
        "true",
        ":",
        "false",
        "(( 1 ))",
        "((1))",
    )
    if forever and waits(shell, source, body) and not leaves_loop(source, body):
        head = source.text[source.start(node) : source.start(body)].strip()
        shell.report_open(head, "", "the loop never ends; what follows it is left out")
        raise ExitScript(0)
    raise StopReading(f"a loop that does not end within {ITERATIONS:,} rounds or 20 launches")


def lines_of_a_program(shell: BashProcess, source: ScriptSource, node: Node, tested: list[Node], before: Values) -> int:
    """`while read` over lines that only running could tell: the body is read for one of them."""
    body = node.child_by_field_name("body")
    assert body is not None
    text = source.text[source.start(node) : source.start(body)].rstrip("; \t\n")
    shell.line = source.line_at(source.start(node))
    shell.report_open(text, "", "how many lines these are is known only where it runs; the loop is read once")
    nodes = body.children

    def again(inner: BashProcess) -> None:
        condition(inner, source, tested)
        loop_body(inner, source, nodes)

    loop_body(shell, source, nodes)
    left_open(shell, before, again)
    return 0


def for_statement(shell: BashProcess, source: ScriptSource, node: Node) -> int:
    """for name in words, and select (its first word)."""
    name = node.child_by_field_name("variable")
    body = node.child_by_field_name("body")
    assert name is not None and body is not None
    keyword = next((child for child in node.children if child.type == "in"), None)
    if keyword is None:
        values = list(shell.arguments)
    else:
        command = simple_command(source.text, source.end(keyword))
        values = expand_all(shell, [word for word in command.words if isinstance(word, BashWord)], listed=True)
    if node.children[0].type == "select":
        shell.report_open(source.text_of(node).splitlines()[0], "", "a choice of a person; the first one is taken")
        values = values[:1]
    elif list_place(shell, values) < len(values):
        text = source.text[source.start(node) : source.start(body)].strip()
        shell.report_open(text, "", "how many words these are is known only where it runs; the loop is read once")
    if len(values) > ITERATIONS:
        raise StopReading(f"a loop over more than {ITERATIONS:,} words")
    leave_after = -1 if waits(shell, source, body) else 1 << 30
    variable, nodes = source.text_of(name), body.children

    def one_round(shell: BashProcess, value: str) -> bool:
        reference = shell.named(variable)
        if reference is not None and reference.reference is not None:
            reference.reference = value
        else:
            shell.set(variable, value)
        return loop_body(shell, source, nodes, leave_after)

    for value in values:
        before = values_of(shell) if shell.reading.is_list(value) else None
        again = one_round(shell, value)
        if before is not None:
            left_open(shell, before, partial(one_round, value=value))
        if not again:
            break
    return shell.status if values else 0


def c_style_for(shell: BashProcess, source: ScriptSource, node: Node) -> int:
    """for (( begin; condition; step ))."""
    opening = next(child for child in node.children if child.type == "((")
    closing = next(child for child in node.children if child.type == "))")
    body = node.child_by_field_name("body")
    assert body is not None
    parts = source.text[source.end(opening) : source.start(closing)].split(";")
    if len(parts) != 3:
        raise UnreadableText("for (( )): three parts were expected")
    line = source.line_at(source.start(node))
    leave_after = -1 if waits(shell, source, body) else 1 << 30
    nodes, before = body.children, values_of(shell)

    def again(inner: BashProcess) -> None:
        arithmetic_status(inner, [expand_quoted(inner, parts[2])])
        loop_body(inner, source, nodes)

    arithmetic_status(shell, [expand_quoted(shell, parts[0])])
    for _ in range(ITERATIONS):
        shell.reading.step()
        shell.assumed = ""
        if parts[1].strip() and arithmetic_status(shell, [expand_quoted(shell, parts[1])]):
            return 0
        if shell.assumed:
            shell.line = line
            shell.report_open(parts[1].strip(), "", f"{shell.assumed}; the loop is read once")
            loop_body(shell, source, nodes)
            left_open(shell, before, again)
            return 0
        if not loop_body(shell, source, nodes, leave_after):
            return 0
        arithmetic_status(shell, [expand_quoted(shell, parts[2])])
    shell.line = line
    raise StopReading(f"a loop that does not end within {ITERATIONS:,} rounds")


def case_statement(shell: BashProcess, source: ScriptSource, node: Node) -> int:
    """The first item whose pattern matches; of a value that only running could tell, an item that goes on."""
    begin = skip_blanks(source.text, source.end(node.children[0]), lines=True)
    value = expand_text(shell, source.text[begin : word_end(source.text, begin)])
    items = [child for child in node.children if child.type == "case_item"]
    going = False
    status = number = 0
    while number < len(items):
        if not going:
            truth = _case_matches(shell, source, value, items[number])
            if truth.assumed:
                shell.line = source.line_at(source.start(node))
                number = assumed_item(shell, source, value, items, number)
                if number == len(items):
                    break
            elif not truth.value:
                number += 1
                continue
        item, bracket = items[number], _case_patterns(source, items[number])[1]
        end = next((child.type for child in reversed(item.children) if child.type in (";;", ";&", ";;&")), ";;")
        status = block(
            shell, source, [child for child in item.children if source.start(child) >= bracket and child.type != end]
        )
        if end == ";;":
            return status
        going = end == ";&"
        number += 1
    return status


def assumed_item(shell: BashProcess, source: ScriptSource, value: str, items: list[Node], begin: int) -> int:
    """The item of `case` that is taken where only running could tell, from `begin` on; behind the last one: none.

    As with `if`: not one that ends the script or starts nothing. Else the value that a probe falls back to decides, or
    the value is assumed to match no pattern."""
    values = possible_values(shell, value)
    reached = [] if is_open("".join(values)) else [_matching(shell, source, one, items, begin)[-1] for one in values]
    left = sorted({*reached}) or _matching(shell, source, value, items, begin)
    assumed = reached[0] if reached else left[-1]
    leaves = bool(shell.loops) and len(shell.reading.launches) > shell.leave_after
    why = "" if reached else "an unknown value"
    costs: list[tuple[str, Callable[[list[Node]], int]]] = [
        ("the other branches end the script", lambda nodes: _ends(shell, source, nodes)),
        ("a loop is left after its launches", lambda nodes: shell.loops and leaves_loop(source, *nodes) != leaves),
        ("the other branches start nothing", lambda nodes: not launches(shell, source, *nodes)),
    ]
    for reason, cost in costs:
        found = {number: int(cost(items[number : number + 1])) for number in left}
        best = [number for number in left if found[number] == min(found.values())]
        if len(best) < len(left):
            left, why = best, reason
    chosen = assumed if assumed in left else left[0]
    if reached:
        first = reached.index(chosen)
        part = next(character for character in value if is_open(character))
        known = shell.reading.choices[part]
        shell.reading.choices[part] = (known[first], *known[:first], *known[first + 1 :])
        why = "; ".join(filter(None, (" or ".join(sorted(values)), why)))
    taken = "no branch" if chosen == len(items) else f"{'|'.join(_case_patterns(source, items[chosen])[0])})"
    shell.report_open(f"case {value}", "", f"{why}; {taken} is taken")
    return chosen


def _matching(shell: BashProcess, source: ScriptSource, value: str, items: list[Node], begin: int) -> list[int]:
    """The items that a value may come to, up to the first that it surely matches; behind the last one: none of them."""
    found = []
    for number in range(begin, len(items)):
        truth = _case_matches(shell, source, value, items[number])
        if truth.value or truth.assumed:
            found.append(number)
        if truth.value and not truth.assumed:
            return found
    return [*found, len(items)]


def _ends(shell: BashProcess, source: ScriptSource, nodes: list[Node]) -> int:
    """0 where a branch goes on or launches, 1 where it may end the script, 2 where it does."""
    if launches(shell, source, *nodes) or not ends_script(shell, source, *nodes):
        return 0
    plain = ("command", "compound_statement", "redirected_statement")
    return 1 + ends_script(shell, source, *(part for node in nodes for part in node.children if part.type in plain))


def _case_patterns(source: ScriptSource, item: Node) -> tuple[list[str], int]:
    """The patterns of an item, and the place after its bracket."""
    text, at = source.text, source.start(item)
    at = skip_blanks(text, at + 1) if text[at] == "(" else at
    found = []
    while True:
        end = word_end(text, at, patterns=True)
        found.append(text[at:end])
        if end == at:
            raise UnreadableText("a pattern of case")
        at = skip_blanks(text, end)
        if at >= len(text) or text[at] not in "|)":
            raise UnreadableText("a pattern of case")
        if text[at] == ")":
            return found, at + 1
        at = skip_blanks(text, at + 1, lines=True)


def _case_matches(shell: BashProcess, source: ScriptSource, value: str, item: Node) -> Truth:
    truth = Truth(False)
    for text in _case_patterns(source, item)[0]:
        truth = either(truth, pattern_matches(shell, value, expand_pattern(shell, text)))
        if truth.value and not truth.assumed:
            break
    return truth


HANDLERS.update(
    if_statement=if_statement,
    while_statement=while_statement,
    for_statement=for_statement,
    c_style_for_statement=c_style_for,
    case_statement=case_statement,
)
