"""What only the number of rounds could tell after a loop that is read once.

The body is read again on a copy of the shell, where it starts nothing: what a further round changes is open."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

from launcher.scripts.words.state import BashProcess, ExitScript, InputStream, LeaveLoop, TextSink, Variable, is_open
from launcher.scripts.words.values import open_list

Values = dict[str, dict[int | str, str]]
"""Values of variables by name and key."""
PASSES = 3
"""Rounds after the first: with what the second one changes open, a later one may change more."""
OWN = ("OLDPWD", "BASH_REMATCH", "OPTIND", "OPTARG", "DIRSTACK")
"""Variables that bash itself keeps."""

NUMBER = re.compile(r"-?\d+")


def values_of(shell: BashProcess) -> Values:
    """The values of all variables, to compare later ones with; the arguments are those of `@`."""
    shell.reading.step(1 + len(shell.scopes))
    found = {name: dict(variable.values) for name, variable in shell.visible_variables().items()}
    return {**found, "@": dict(enumerate(shell.arguments))}


def left_open(shell: BashProcess, before: Values, again: Callable[[BashProcess], object]) -> None:
    """Leaves open what a further round changes; `again` runs one, `before` is how the first one began."""
    for _ in range(PASSES):
        inner, changed = one_round(shell, again)
        for number, scope in enumerate(inner.scopes[: len(shell.scopes)]):
            for name in {**scope, **shell.scopes[number]}:
                changed |= compared(shell, number, name, scope.get(name), before)
        changed |= arguments_compared(shell, inner, len(before["@"]))
        if inner.folder != shell.folder:
            shell.folder = shell.open_value("cd", "{PWD after the loop}")
            changed = True
        if not changed:
            break
    for name, variable in shell.visible_variables().items():
        if variable.kind == "associative":
            open_keys(shell, name, variable, before.get(name, {}))


def one_round(shell: BashProcess, again: Callable[[BashProcess], object]) -> tuple[BashProcess, bool]:
    """A copy of the shell after one more round, and whether that wrote anything, which is unknown then."""
    reading, inner = shell.reading, shell.subshell()
    inner.loops = shell.loops
    inner.stdin = another(shell.stdin)
    inner.inputs = {number: another(stream) for number, stream in shell.inputs.items()}
    copies = {id(sink): TextSink() for sink in shell.sinks.values() if sink is not None}
    inner.sinks = {number: None if sink is None else copies[id(sink)] for number, sink in shell.sinks.items()}
    counts = len(reading.launches), len(reading.others), len(reading.open), len(reading.refused)
    written, reading.written = reading.written, dict(reading.written)
    reading.step(1 + len(written) // 10)
    try:
        again(inner)
    except (ExitScript, LeaveLoop):
        pass  # what it changed until then counts
    finally:
        later, reading.written = reading.written, written
        del reading.launches[counts[0] :], reading.others[counts[1] :]
        for part in [*islice(reading.open, counts[2], None)]:
            if not reading.open[part].note:  # conditions that are only assumed stay named
                del reading.open[part]
        for refused in [*islice(reading.refused, counts[3], None)]:
            del reading.refused[refused]
    changed = False
    for path, text in later.items():
        if path not in written or (written[path] is not None and written[path] != text):
            written[path], changed = None, True
    for sink in shell.sinks.values():
        if sink is not None and sink.known and (copies[id(sink)].size or not copies[id(sink)].known):
            sink.known = False
            changed = True
    return inner, changed


def another(stream: InputStream) -> InputStream:
    """An input to read on from; lines that only running could tell do not end."""
    return replace(stream, read=stream.read and stream.text is not None)


def compared(shell: BashProcess, number: int, name: str, later: Variable | None, before: Values) -> bool:
    """Leaves open what a round changed of a variable of one scope; whether that is anything."""
    now = shell.scopes[number].get(name)
    if name in OWN or (now is not None and (now.readonly or now.reference is not None)):
        return False
    if now is None:
        assert later is not None
        if later.reference is not None:
            return False
        now = shell.scopes[number][name] = replace(later, values={})
    values = {} if later is None else later.values
    if now.values == values:
        return False
    known = dict(now.values)
    if now.kind == "indexed":
        array_compared(shell, name, now, values, before.get(name, {}))
    else:
        for key in {**now.values, **values}:
            if now.values.get(key) != values.get(key):
                shown = name if now.kind == "scalar" else f"{name}[{key}]"
                counts = NUMBER.fullmatch(values.get(key, "")) is not None
                now.values[key] = shell.open_value("${" + shown + "}", "{" + shown + "}", single=counts)
        if now.kind == "associative" and known.keys() != values.keys():
            any_number = open_list(shell, f"{name}[@]")
            now.values[any_number] = any_number
    return now.values != known


def open_keys(shell: BashProcess, name: str, variable: Variable, before: dict[int | str, str]) -> None:
    """Elements of `declare -A` under a key that each round may have another one of: any number of them."""
    for key in variable.values:
        if key not in before and is_open(str(key)):
            variable.values[key] = open_list(shell, f"{name}[@]")


def array_compared(
    shell: BashProcess, name: str, now: Variable, later: dict[int | str, str], before: dict[int | str, str]
) -> None:
    """Elements that a round changed are open, and from where it added or took some, any number of them."""
    differ = sorted(int(key) for key in {**now.values, **later} if now.values.get(key) != later.get(key))
    if now.values.keys() == later.keys():
        for key in differ:
            now.values[key] = shell.open_value(f"${{{name}[{key}]}}", "{" + f"{name}[{key}]" + "}")
        return
    first: int | str = min([differ[0], *(int(key) for key in now.values if key not in before)])
    value = now.values.get(first, "")
    now.values = {key: one for key, one in now.values.items() if int(key) < int(first)}
    one = len(value) == 1 and is_open(value)
    now.values[first] = shell.reading.list_character(value) if one else open_list(shell, f"{name}[@]")


def arguments_compared(shell: BashProcess, inner: BashProcess, count: int) -> bool:
    """The same of the positional parameters, of which there were so many before the loop."""
    now, later = shell.arguments, inner.arguments
    if now == later:
        return False
    pairs = zip(now, later, strict=False)
    first = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(now), len(later)))
    first = min(first, count)
    shell.arguments = [*now[:first], open_list(shell, "@")]
    return shell.arguments != now
