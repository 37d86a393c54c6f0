"""Expands words as bash does: braces, tilde, parameters, commands, arithmetic, splitting into fields."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NoReturn

from launcher.scripts.words import parameters, patterns
from launcher.scripts.words.arithmetic import BadArithmetic, evaluate
from launcher.scripts.words.ends import run_apart
from launcher.scripts.words.fields import FieldPiece
from launcher.scripts.words.files import write_file
from launcher.scripts.words.globs import has_pattern, matching_files
from launcher.scripts.words.lexer import (
    Arithmetic,
    BashWord,
    Parameter,
    Part,
    PlainText,
    Substitution,
    UnreadableText,
    quoted_parts,
    simple_command,
    skip_expansion,
    word_parts,
)
from launcher.scripts.words.parameters import ParameterText, read_parameter
from launcher.scripts.words.state import (
    FIELDS,
    NOT_SET,
    VALUE_CHARACTERS,
    BashProcess,
    ExitScript,
    StopReading,
    TextSink,
    is_open,
)
from launcher.scripts.words.values import (
    count,
    declared_text,
    element,
    elements,
    field_list,
    key_value_words,
    list_place,
    named_value,
    shown_keys,
    sliced,
)

ONE_WORD = re.compile(
    r"(?:^|\|\s*)(?:wc -[lwc]|nproc|hostname(?: -[sf])?|whoami|id -\w+|uname|uuidgen|mktemp(?: -\w+)*"
    r"|date(?: -u)?(?: ['\"]?\+[^\s'\"]+['\"]?)|git rev-parse(?: [\w-]+)*)(?:\s+2>\s*/dev/null)?$"
)
"""Commands of a substitution, the last of which writes one word."""


def expand_fields(shell: BashProcess, text: str, *, listed: bool = False, files: bool = False) -> list[str]:
    """The fields that one word of a command becomes.

    An open value counts as one field, as what a program is given mostly is one; with `listed` as any number of them:
    in an array, in a loop, and for a function, which may count its arguments. `files`: patterns of files are open."""
    fields = []
    for word in patterns.expand_braces(text):
        parts = with_tilde(shell, word_parts(word), assignment=re.match(r"[A-Za-z_]\w*=", word) is not None)
        fields += _fields(shell, parts, listed, files or listed)
    return fields


def _fields(shell: BashProcess, parts: Iterable[Part], listed: bool, files: bool) -> list[str]:
    out = field_list(shell, listed=listed)
    for piece in pieces(shell, parts):
        if files and not piece.quoted and any(has_pattern(value) for value in piece.values):
            out.pattern_from = min(out.pattern_from, len(out.fields))
        if not piece.many:
            if piece.quoted or piece.literal:
                out.add(piece.values[0])
            else:
                out.split(piece.values[0])
            continue
        for number, value in enumerate(piece.values):
            if number:
                out.end()
            if piece.quoted:
                out.add(value)
            elif not value and not out.white and out.marks and number < len(piece.values) - 1:
                out.add("")
            else:
                out.split(value)
    out.end()
    return matching_files(shell, out) if out.pattern_from < len(out.fields) else out.fields


def expand_all(
    shell: BashProcess, words: Iterable[BashWord], *, listed: bool = False, files: bool = False
) -> list[str]:
    """The fields of all words; `listed` and `files` as in `expand_fields`."""
    fields: list[str] = []
    for word in words:
        fields += expand_fields(shell, word.text, listed=listed, files=files)
        shell.reading.step()
        if len(fields) > FIELDS:
            raise StopReading("too many words in one command")
    return fields


def expand_text(shell: BashProcess, text: str) -> str:
    """One value, not split: what stands after `name=`, in `case`, in a redirect."""
    return _joined(shell, pieces(shell, with_tilde(shell, word_parts(text), assignment=True)))


def expand_quoted(shell: BashProcess, text: str, *, document: bool = False) -> str:
    """One value as between double quotes: here-documents, arithmetic."""
    return _joined(shell, pieces(shell, quoted_parts(text, document=document)))


def _joined(shell: BashProcess, found: Iterable[FieldPiece]) -> str:
    value = "".join(" ".join(piece.values) if piece.many else piece.values[0] for piece in found)
    if len(value) > VALUE_CHARACTERS:
        raise StopReading(f"a value longer than {VALUE_CHARACTERS:,} characters")
    shell.reading.step(1 + len(value) // 2000)
    return shell.reading.as_one(value)


def expand_pattern(shell: BashProcess, text: str) -> str:
    """A pattern in which quoted characters follow a backslash."""
    return _pattern(pieces(shell, word_parts(text)))


def _pattern(found: Iterable[FieldPiece]) -> str:
    out = []
    for piece in found:
        value = " ".join(piece.values)
        out.append(re.sub(r"([^\w\U000f0000-\U000ffffd])", r"\\\1", value, flags=re.DOTALL) if piece.quoted else value)
    return "".join(out)


def with_tilde(shell: BashProcess, parts: tuple[Part, ...], *, assignment: bool = False) -> tuple[Part, ...]:
    """Home for `~` at the beginning of a word, and in assignments after `=` and `:`."""
    if not parts or not isinstance(parts[0], PlainText) or parts[0].quoted or "~" not in parts[0].value:
        return parts
    where = r"(^|[=:])~(?=/|:|$)" if assignment else r"(^)~(?=/|:|$)"
    if len(parts) > 1:
        where = where.replace("|$)", ")")
    home = shell.get("HOME") or shell.open_value("~", "{HOME}")
    return (PlainText(re.sub(where, lambda found: found[1] + home, parts[0].value), False), *parts[1:])


def pieces(shell: BashProcess, parts: Iterable[Part]) -> Iterator[FieldPiece]:
    """The values of the parts of a word."""
    for part in parts:
        shell.reading.step()
        if isinstance(part, PlainText):
            yield FieldPiece((part.value,), part.quoted or not part.value, literal=True)
        elif isinstance(part, Arithmetic):
            yield FieldPiece((arithmetic_value(shell, part.expression, part.text),), part.quoted)
        elif isinstance(part, Substitution):
            yield FieldPiece((substituted(shell, part),), part.quoted)
        else:
            yield from parameter_pieces(shell, part)


def arithmetic_value(shell: BashProcess, expression: str, text: str) -> str:
    """The value of `$(( ))`."""
    try:
        value = evaluate(shell, expand_quoted(shell, expression))
    except BadArithmetic as error:
        raise UnreadableText(f"arithmetic: {error}") from error
    if value is not None:
        return str(value)
    return shell.open_value(text, "{" + " ".join(expression.split()) + "}", single=True)


def substituted(shell: BashProcess, part: Substitution) -> str:
    """What the commands of a substitution write, where nothing needs to run for that."""
    body = " ".join(part.body.split())
    if part.operator != "$":
        path = shell.open_value(part.text, "{" + f"{part.operator}({body})" + "}")
        if part.operator == "<":
            written = TextSink()
            run_apart(shell.subshell(), part.body, written)
            write_file(shell, path, written.text, append=False)
        return path
    out = TextSink()
    inner = shell.subshell()
    before = len(shell.reading.open)
    run_apart(inner, f"cat {part.body}" if _is_file(part.body) else part.body, out)
    shell.status, shell.assumed, shell.substituted = inner.status, inner.assumed, True
    if out.text is not None:
        return out.text.rstrip("\n")
    for key in list(shell.reading.open)[before:]:
        if not key[2]:  # a condition inside it is no more than a part of what is open
            del shell.reading.open[key]
    value = shell.open_value(part.text, "{" + body + "}", single=ONE_WORD.search(body) is not None)
    if len(out.choices) == 1 and not out.parts:
        shell.reading.choices.setdefault(value, tuple(text.rstrip("\n") for text in out.choices[0]))
    return value


def _is_file(body: str) -> bool:
    """Whether a substitution is `$(< file)`, which bash reads without a command."""
    if not body.lstrip().startswith("<"):
        return False
    command = simple_command(body, 0)
    if command.words or body[command.end :].strip():
        return False
    return [one.operator for one in command.redirects] == ["<"]


def parameter_pieces(shell: BashProcess, part: Parameter) -> Iterator[FieldPiece]:
    """The values of `$name` and `${...}`."""
    try:
        yield from _parameter(shell, read_parameter(part.inner), part)
    except patterns.Undecided:
        yield FieldPiece((shell.open_value(part.text, "{" + part.inner + "}"),), part.quoted)


def _parameter(shell: BashProcess, asked: ParameterText, part: Parameter) -> Iterator[FieldPiece]:
    if asked.prefix == "!names":
        names = sorted(name for name in shell.visible_variables() if name.startswith(asked.name))
        yield FieldPiece(tuple(names), part.quoted, many=True)
        return
    if asked.prefix == "!" and asked.subscript in ("@", "*"):
        yield _many(shell, asked, part, shown_keys(shell, asked.name))
        return
    if asked.prefix == "!":
        named = shell.named(asked.name)
        if named is not None and named.reference and not asked.operator:
            yield FieldPiece((named.reference,), part.quoted)
            return
        target = value_of(shell, asked.name, asked.subscript)
        if target is not None and is_open(target):
            raise patterns.Undecided("an open name")
        if target is None or not re.match(r"[A-Za-z_0-9@*]", target):
            raise UnreadableText(f"{part.text}: {asked.name} holds no name")
        inner = read_parameter(target)
        asked = ParameterText(inner.name, inner.subscript, "", asked.operator, asked.argument)
    many = asked.name in "@*" or asked.subscript in ("@", "*")
    if many:
        values = elements(shell, asked.name)
        if asked.prefix == "#":
            yield FieldPiece((count(shell, part.inner, values),), part.quoted)
        else:
            yield from _with_many(shell, asked, part, values)
        return
    defaults = asked.operator.lstrip(":") in ("-", "=", "+", "?") and asked.operator
    value = value_of(shell, asked.name, asked.subscript, plain=not defaults)
    if asked.prefix == "#":
        length = str(len(value or ""))
        if is_open(value or ""):
            length = shell.open_value(part.text, "{" + part.inner + "}", single=True)
        yield FieldPiece((length,), part.quoted)
    elif defaults:
        yield from _default(shell, asked, part, [] if value is None else [value])
    elif value is not None and (asked.operator, asked.argument) == ("@", "A"):
        yield FieldPiece((declared_text(shell, asked.name, value),), part.quoted)
    else:
        new = not_set(shell, asked, part) if value is None else changed(shell, asked, value)
        yield FieldPiece((new,), part.quoted)


def not_set(shell: BashProcess, asked: ParameterText, part: Parameter) -> str:
    """The value of a variable that is not set: empty, and named; the end under `set -u`."""
    if "nounset" in shell.options:
        ended_without(shell, asked, "set -u")
    if shell.unset_seen and asked.name != "_":
        shell.report_open(part.text, "", NOT_SET)
    return ""


def ended_without(shell: BashProcess, asked: ParameterText, by: str) -> NoReturn:
    """The end of the script, as a variable has no value."""
    label = f"${asked.name}" if asked.name.isdigit() else asked.name
    given = asked.subscript is None and not (asked.name.isdigit() and shell.calls)
    shell.report_unread(f"{label} is not set, and {by} ends the script there", asked.name if given else "")
    raise ExitScript(1)


def _with_many(shell: BashProcess, asked: ParameterText, part: Parameter, values: list[str]) -> Iterator[FieldPiece]:
    """`"${array[@]}"` with its operators, each applied to every element."""
    if asked.operator.lstrip(":") in ("-", "=", "+", "?") and asked.operator:
        if asked.operator.startswith(":") and not " ".join(values):
            values = []
        yield from _default(shell, asked, part, values, many=True)
        return
    if asked.operator == "@" and asked.argument == "A" and asked.name not in "@*":
        text = declared_text(shell, asked.name)  # of an array three words, as bash writes it
        yield _many(shell, asked, part, text.split(" ", 2) if text.startswith("declare ") else [text])
        return
    if asked.operator == "@" and asked.argument in ("K", "k") and asked.name not in "@*":
        yield _many(shell, asked, part, key_value_words(shell, asked.name, joined=asked.argument == "K"))
        return
    if asked.operator == ":":
        values = sliced(shell, asked, values, bounds(shell, asked.argument))
    else:
        values = [_changed_element(shell, asked, part, value) for value in values]
    yield _many(shell, asked, part, values)


def _changed_element(shell: BashProcess, asked: ParameterText, part: Parameter, value: str) -> str:
    """As `changed`; an element of which only running could tell what becomes of it stays one open value."""
    try:
        return changed(shell, asked, value)
    except patterns.Undecided:
        new = shell.open_value(part.text, "{" + part.inner + "}")
        return shell.reading.list_character(new) if shell.reading.is_list(value) else new


def _many(shell: BashProcess, asked: ParameterText, part: Parameter, values: list[str]) -> FieldPiece:
    if part.quoted and "*" in (asked.name, asked.subscript):
        separators = shell.get("IFS")
        joined = (" " if separators is None else separators[:1]).join(values)
        return FieldPiece((shell.reading.as_one(joined),), True)
    return FieldPiece(tuple(values), part.quoted, many=True)


def _default(
    shell: BashProcess, asked: ParameterText, part: Parameter, values: list[str], *, many: bool = False
) -> Iterator[FieldPiece]:
    """`:-`, `:=`, `:+`, `:?` and the same without `:`."""
    use = bool(values) and (bool(values[0]) or many or not asked.operator.startswith(":"))
    sign = asked.operator[-1]
    if sign == "+":
        if use:
            yield from argument_pieces(shell, asked.argument, part.quoted)
        else:
            none = "@" in (asked.name, asked.subscript) and not elements(
                shell, asked.name
            )  # as "$@" without arguments: no word
            yield FieldPiece((), part.quoted, many=True) if none else FieldPiece(("",), part.quoted)
        return
    if use:
        yield _many(shell, asked, part, values) if many else FieldPiece((values[0],), part.quoted)
        return
    kept, shell.inside_default = shell.inside_default, True
    try:
        default = list(argument_pieces(shell, asked.argument, part.quoted))
    finally:
        shell.inside_default = kept
    if sign == "-":
        yield from default
        return
    if sign == "?":
        ended_without(shell, asked, part.text)
    value = _joined(shell, default)
    key = None if asked.subscript is None else element_key(shell, asked.name, asked.subscript)
    shell.set(asked.name, value, key=key)
    yield FieldPiece((value,), part.quoted)


def argument_pieces(shell: BashProcess, argument: str, quoted: bool) -> Iterator[FieldPiece]:
    """The word after `:-` and its like; in double quotes, `'` is a character there."""
    if not quoted:
        for piece in pieces(shell, with_tilde(shell, word_parts(argument))):
            yield replace(piece, literal=False)
        return
    if not argument:
        yield FieldPiece(("",), True)
    argument = re.sub(r"\\(.)", lambda found: "}" if found[1] == "}" else found[0], argument, flags=re.DOTALL)
    if '"' not in argument:
        yield from pieces(shell, quoted_parts(argument))
        return
    begin, at, inside = 0, 0, False
    while at <= len(argument):
        if at == len(argument) or argument[at] == '"':
            yield from pieces(shell, quoted_parts(argument[begin:at]))
            begin, inside = at + 1, not inside
            at += 1
        elif argument[at] in "$`":
            at = skip_expansion(argument, at, 0)
        else:
            at += 2 if argument[at] == "\\" else 1


def changed(shell: BashProcess, asked: ParameterText, value: str) -> str:
    """The value after an operator that takes a part of it or replaces in it."""
    sign = asked.operator
    if not sign:
        return value
    shell.reading.step(1 + len(value) // 200)
    if sign == ":":
        return substring(shell, asked, value)
    if sign[0] in "#%":
        pattern = _pattern(pieces(shell, word_parts(asked.argument)))
        return parameters.removed(value, pattern, sign, extended="extglob" in shell.options)
    if sign[0] == "/":
        pattern, by = parameters.split_replacement(asked.argument)
        expression = _pattern(pieces(shell, word_parts(pattern)))
        at = sign[1:] if sign[1:] in ("#", "%") else ""
        new = "".join(
            " ".join(piece.values) if piece.quoted else " ".join(piece.values).replace("&", patterns.MATCHED)
            for piece in pieces(shell, word_parts(by))
        )
        if at and not expression and not shell.reading.is_list(value):  # a text before or after it
            new = new.replace(patterns.MATCHED, "")
            return new + value if at == "#" else value + new
        if is_open(value) or is_open(expression):
            raise patterns.Undecided("an open part")
        extended, any_case = "extglob" in shell.options, "nocasematch" in shell.options
        return patterns.replaced(
            value, expression, new, everywhere=sign == "//", at=at, extended=extended, any_case=any_case
        )
    if is_open(value):
        raise patterns.Undecided("an open part")
    if sign[0] in "^,~":
        return parameters.with_case(value, sign, expand_pattern(shell, asked.argument))
    if sign == "@" and asked.argument in ("Q", "K", "k", "U", "L", "u"):
        if asked.argument in "QKk":
            if not (value.isascii() and value.isprintable()):  # written as $'...'
                raise patterns.Undecided("an unusual character")
            return parameters.shell_quoted(value)
        if asked.argument in "UL":
            return value.upper() if asked.argument == "U" else value.lower()
        if asked.argument == "u":
            return value[:1].upper() + value[1:]
    raise UnreadableText(f"${{{asked.name}{sign}{asked.argument}}} is not known")


def bounds(shell: BashProcess, argument: str) -> list[int]:
    """Offset and length of a slice. Raises Undecided where they are open."""
    found = []
    for text in parameters.split_slice(argument):
        try:
            number = evaluate(shell, expand_quoted(shell, text))
        except BadArithmetic as error:
            raise UnreadableText(f"arithmetic: {error}") from error
        if number is None:
            raise patterns.Undecided("an open number")
        found.append(number)
    return found


def substring(shell: BashProcess, asked: ParameterText, value: str) -> str:
    """`${name:offset:length}`."""
    numbers = bounds(shell, asked.argument)
    begin = numbers[0]
    if is_open(value):
        first_open = next(at for at, character in enumerate(value) if is_open(character))
        if len(numbers) == 2 and begin >= 0 and numbers[1] >= 0 and begin + numbers[1] <= first_open:
            return value[begin : begin + numbers[1]]
        if begin != 0 or len(numbers) == 2:
            raise patterns.Undecided("an open part")
    begin = begin if begin >= 0 else len(value) + begin
    if begin < 0 or begin > len(value):
        return ""
    if len(numbers) == 1:
        return value[begin:]
    end = begin + numbers[1] if numbers[1] >= 0 else len(value) + numbers[1]
    if end < begin:
        raise UnreadableText(f"${{{asked.name}:{asked.argument}}}: a length below 0")
    return value[begin:end]


def element_key(shell: BashProcess, name: str, subscript: str) -> int | str:
    """The key that a subscript means."""
    variable = shell.variable(name)
    if variable is not None and variable.kind == "associative":
        return expand_text(shell, subscript)
    try:
        number = evaluate(shell, expand_quoted(shell, subscript))
    except BadArithmetic as error:
        raise UnreadableText(f"{name}[{subscript}]: {error}") from error
    if number is None:
        raise patterns.Undecided("an open subscript")
    if number < 0 and variable is not None and variable.values:
        if list_place(shell, elements(shell, name)) < len(variable.values):
            raise patterns.Undecided("an open number of elements")
        number += max(key for key in variable.values if isinstance(key, int)) + 1
    return number


def value_of(shell: BashProcess, name: str, subscript: str | None = None, *, plain: bool = True) -> str | None:
    """The value of a variable, an element or an argument; None where it is not set (see `named_value`)."""
    if subscript is not None:
        return element(shell, name, element_key(shell, name, subscript))
    return named_value(shell, name, plain=plain)
