"""Conditions: `[ ... ]`, `test` and `[[ ... ]]`. What depends on the machine is assumed, and says so."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from launcher.scripts.words import patterns
from launcher.scripts.words.arithmetic import BadArithmetic, evaluate
from launcher.scripts.words.expand import expand_pattern, expand_quoted, expand_text
from launcher.scripts.words.files import exists
from launcher.scripts.words.lexer import UnreadableText, skip_blanks, skip_double, skip_expansion, skip_single, word_end
from launcher.scripts.words.state import IS_OPEN, BashProcess, is_open

FILE_TESTS = "abcdefghkprstuwxGLNOS"
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}  # fmt: skip
STRINGS = ("=", "==", "!=", "<", ">", "-nt", "-ot", "-ef")


@dataclass(frozen=True)
class Truth:
    """Whether a condition holds; `assumed` says what that rests on where only running could tell."""

    value: bool
    assumed: str = ""

    def negated(self) -> Truth:
        return Truth(not self.value, self.assumed)


def unary(shell: BashProcess, operator: str, value: str) -> Truth:
    """`-z value`, `-f value`, ..."""
    if operator in ("-z", "-n"):
        cluster = len(value) == 1 and is_open(value) and shell.is_cluster_name(shell.reading.visible(value).strip("{}"))
        if cluster and shell.is_open_name(shell.reading.visible(value).strip("{}")):
            return Truth(operator == "-z", "no scheduler sets it in a clean shell")
        assumed = "an answer that is not empty is assumed" if IS_OPEN.fullmatch(value) else ""
        return Truth((not value) == (operator == "-z"), assumed)
    if operator == "-v":
        name, _, key = value.partition("[")
        variable = shell.variable(name)
        if key in ("@]", "*]"):
            return Truth(variable is not None and bool(variable.values))
        return Truth(variable is not None and (key.rstrip("]") or "0") in map(str, variable.values))
    if operator == "-t":
        return Truth(False, "no terminal is assumed")
    if operator == "-o":
        return Truth(value in shell.options)
    if exists(shell, value):
        return Truth(operator != "-d" and operator != "-L")
    return Truth(False, "whether the file exists is known only where the script runs; assumed not to")


def compare(shell: BashProcess, left: str, operator: str, right: str) -> Truth:
    """Comparison of two strings or numbers; patterns are not read here."""
    if operator in COMPARE:
        numbers = [integer(shell, text) for text in (left, right)]
        first, second = numbers
        if first is None or second is None:
            return Truth(operator in ("-ne", "-ge", "-gt"), "a number that only running could tell")
        return Truth(COMPARE[operator](first, second))
    if operator in ("-nt", "-ot", "-ef"):
        return Truth(False, "files of the machine")
    if is_open(left) or is_open(right):
        if left == right:
            return Truth(operator in ("=", "=="))
        lefts, rights = possible_values(shell, left), possible_values(shell, right)
        if not is_open("".join((*lefts, *rights))):
            return agreed([compare(shell, one, operator, other) for one in lefts for other in rights], lefts[0])
        return Truth(operator in ("!=", ">"), "an unknown value; assumed to differ")
    return Truth(
        {"=": left == right, "==": left == right, "!=": left != right, "<": left < right, ">": left > right}[operator]
    )


def possible_values(shell: BashProcess, value: str) -> tuple[str, ...]:
    """What a value may be, where the script writes that out, the one to assume first; else the value as it is."""
    parts = set(IS_OPEN.findall(value))
    if len(parts) != 1:
        return (value,)
    part = parts.pop()
    return tuple(value.replace(part, text) for text in shell.reading.choices.get(part, (part,)))


def agreed(truths: Sequence[Truth], value: str) -> Truth:
    """What holds for the first value; only assumed where it does not for the others."""
    first = truths[0].value
    return Truth(first, "" if all(truth.value == first for truth in truths) else f"an unknown value; taken as {value}")


def integer(shell: BashProcess, text: str) -> int | None:
    """A number of `[ a -gt b ]`; None where it is open. Raises UnreadableText."""
    if is_open(text):
        return None
    if not re.fullmatch(r"\s*[-+]?\d{1,18}\s*", text):
        raise UnreadableText(f"{text[:40]!r} is not a whole number")
    return int(text)


class TestCommand:
    """`[ ... ]` and `test`: words that are expanded already."""

    def __init__(self, shell: BashProcess, words: list[str]) -> None:
        self.shell, self.words = shell, words

    def truth(self) -> Truth:
        """The result, by the number of words as POSIX has it. Raises UnreadableText."""
        return self.by_count(self.words)

    def by_count(self, words: list[str], depth: int = 0) -> Truth:
        count = len(words)
        if depth > 20:
            raise UnreadableText("a condition with too many brackets")
        if count == 0:
            return Truth(False)
        if count == 1:
            return unary(self.shell, "-n", words[0])
        if words[0] == "!" and count <= 4:
            return self.by_count(words[1:], depth + 1).negated()
        if count == 2 and re.fullmatch(r"-[a-zA-Z]", words[0]):
            return unary(self.shell, words[0], words[1])
        if count == 3 and (words[1] in STRINGS or words[1] in COMPARE):
            return compare(self.shell, words[0], words[1], words[2])
        if count >= 3 and words[0] == "(" and words[-1] == ")" and words.count("(") == 1:
            return self.by_count(words[1:-1], depth + 1)
        for operator in ("-o", "-a"):
            if operator in words[1:-1]:
                place = words.index(operator, 1)
                left, right = self.by_count(words[:place], depth + 1), self.by_count(words[place + 1 :], depth + 1)
                return either(left, right) if operator == "-o" else both(left, right)
        if words[0] == "!":
            return self.by_count(words[1:], depth + 1).negated()
        raise UnreadableText(f"[ {' '.join(words)[:80]} ] is not a condition")


def both(left: Truth, right: Truth) -> Truth:
    """And."""
    for one in (left, right):
        if not one.value and not one.assumed:
            return one
    return Truth(left.value and right.value, left.assumed or right.assumed)


def either(left: Truth, right: Truth) -> Truth:
    """Or."""
    return both(left.negated(), right.negated()).negated()


def tokens_of(text: str) -> list[str]:
    """The words and operators between `[[` and `]]`."""
    found: list[str] = []
    at = 0
    while True:
        at = skip_blanks(text, at, lines=True)
        if at >= len(text):
            return found
        if found and found[-1] == "=~":
            end = _expression_end(text, at)
        elif text.startswith(("&&", "||"), at):
            end = at + 2
        elif text[at] in "()<>":
            end = at + 1
        else:
            end = word_end(text, at, patterns=True)
        if end == at:
            raise UnreadableText(f"{text[at]} in [[ ]]")
        found.append(text[at:end])
        at = end


def _expression_end(text: str, at: int) -> int:
    level = 0
    while at < len(text):
        character = text[at]
        if character in " \t\n" and level <= 0:
            break
        if character == "\\":
            at += 2
        elif character == "'":
            at = skip_single(text, at + 1)
        elif character == '"':
            at = skip_double(text, at + 1)
        elif character in "$`":
            at = skip_expansion(text, at, 0)
        elif character == "[" and (found := re.compile(r"\[\^?\]?(\[:\w+:\]|[^\]])*\]").match(text, at)):
            at = found.end()
        else:
            if character == ")" and level == 0:
                break
            level += (character == "(") - (character == ")")
            at += 1
    return min(at, len(text))


class DoubleBracket:
    """`[[ ... ]]`: its words are expanded one by one, and only those that are needed."""

    def __init__(self, shell: BashProcess, text: str) -> None:
        self.shell, self.tokens, self.at = shell, tokens_of(text), 0

    def truth(self) -> Truth:
        """The result. Raises UnreadableText."""
        result = self.alternatives(True, 0)
        if self.at < len(self.tokens):
            raise UnreadableText(f"{self.tokens[self.at][:40]} in [[ ]]")
        return result

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def alternatives(self, live: bool, depth: int) -> Truth:
        left = self.conjunction(live, depth)
        while self.peek() == "||":
            self.at += 1
            decided = left.value and not left.assumed
            right = self.conjunction(live and not decided, depth)
            left = left if decided else either(left, right)
        return left

    def conjunction(self, live: bool, depth: int) -> Truth:
        left = self.single(live, depth)
        while self.peek() == "&&":
            self.at += 1
            decided = not left.value and not left.assumed
            right = self.single(live and not decided, depth)
            left = left if decided else both(left, right)
        return left

    def single(self, live: bool, depth: int) -> Truth:
        if depth > 20:
            raise UnreadableText("a condition with too many brackets")
        token = self.peek()
        self.at += 1
        if token == "!":
            return self.single(live, depth + 1).negated()
        if token == "(":
            inside = self.alternatives(live, depth + 1)
            if self.peek() != ")":
                raise UnreadableText("a ) is missing in [[ ]]")
            self.at += 1
            return inside
        operator = self.peek()
        if operator in STRINGS or operator in COMPARE or operator == "=~":
            self.at += 2
            if self.at > len(self.tokens):
                raise UnreadableText(f"nothing after {operator} in [[ ]]")
            return self.binary(token, operator, self.tokens[self.at - 1]) if live else Truth(False)
        if re.fullmatch(r"-[a-zA-Z]", token) and operator not in ("", "&&", "||", ")"):
            self.at += 1
            return unary(self.shell, token, expand_text(self.shell, operator)) if live else Truth(False)
        if not token:
            raise UnreadableText("an operand is missing in [[ ]]")
        return unary(self.shell, "-n", expand_text(self.shell, token)) if live else Truth(False)

    def binary(self, left_text: str, operator: str, right_text: str) -> Truth:
        shell = self.shell
        if operator in COMPARE:
            try:
                numbers = [evaluate(shell, expand_quoted(shell, text)) for text in (left_text, right_text)]
            except BadArithmetic as error:
                raise UnreadableText(f"arithmetic: {error}") from error
            first, second = numbers
            if first is None or second is None:
                return Truth(operator in ("-ne", "-ge", "-gt"), "a number that only running could tell")
            return Truth(COMPARE[operator](first, second))
        left = expand_text(shell, left_text)
        if operator in ("=", "==", "!="):
            pattern = expand_pattern(shell, right_text)
            equal = self.pattern_truth(left, pattern)
            return equal if operator != "!=" else equal.negated()
        if operator != "=~":
            return compare(shell, left, operator, expand_text(shell, right_text))
        expression = expand_pattern(shell, right_text)
        if is_open(left) or is_open(expression):
            return self.literal_truth(left, expression)
        try:
            groups = patterns.search_extended(expression, left, any_case="nocasematch" in shell.options)
        except patterns.Undecided as error:
            return Truth(False, f"{error}; assumed not to match")
        variable = shell.declare("BASH_REMATCH", local=False)
        variable.kind, variable.values = "indexed", dict(enumerate(groups or []))
        return Truth(groups is not None)

    def literal_truth(self, value: str, expression: str) -> Truth:
        """`=~` of a value that is open in part: known where the expression is plain text that a known part has."""
        parts = IS_OPEN.split(value)
        # `\s`, `\b`, `\<` and such are operators of GNU, where they are not quoted.
        literal = re.fullmatch(r"(\^?)((?:[\w/-]|\\[^\w<>`'])+)", expression, re.ASCII)
        if literal and "nocasematch" not in self.shell.options:
            text = re.sub(r"\\(.)", r"\1", literal[2])
            if parts[0].startswith(text) if literal[1] else any(text in part for part in parts):
                variable = self.shell.declare("BASH_REMATCH", local=False)
                variable.kind, variable.values = "indexed", {0: text}
                return Truth(True)
        return Truth(False, "an unknown value; assumed not to match")

    def pattern_truth(self, value: str, pattern: str) -> Truth:
        return pattern_matches(self.shell, value, pattern)


def pattern_matches(shell: BashProcess, value: str, pattern: str) -> Truth:
    """Whether a value matches a pattern, in [[ ]] and `case`."""
    shell.reading.step(1 + len(value) // 500)
    any_case = "nocasematch" in shell.options
    try:
        if not is_open(value) and not is_open(pattern):
            return Truth(patterns.matches(pattern, value, any_case=any_case))
        if value == pattern or re.fullmatch(r"\*+", pattern):
            return Truth(True)
        if not is_open(pattern) and (decided := _of_known_parts(value, pattern, any_case)) is not None:
            return Truth(decided)
        values = possible_values(shell, value)
        if not is_open(pattern) and not is_open("".join(values)):
            return agreed([Truth(patterns.matches(pattern, one, any_case=any_case)) for one in values], values[0])
        if not is_open(pattern) and not re.search(r"(?<!\\)[*?\[(]", pattern):
            known = ".*".join(re.escape(text) for text in IS_OPEN.split(value))
            if not re.fullmatch(
                known, re.sub(r"\\(.)", r"\1", pattern), re.DOTALL | (re.IGNORECASE if any_case else 0)
            ):
                return Truth(False)
    except patterns.Undecided as error:
        return Truth(False, f"{error}; assumed not to match")
    return Truth(False, "an unknown value; assumed not to match")


def _of_known_parts(value: str, pattern: str, any_case: bool) -> bool | None:
    """What the known parts of an open value decide, whatever the open ones are; None where they do not."""
    if not re.search(r"(?<!\\)[?\[]|!\(", pattern) and patterns.matches(pattern, value, any_case=any_case):
        return True  # only a `*` can have taken an open part
    if "(" in pattern:
        return None
    texts = [re.sub(r"\\(.)", r"\1", text) for text in re.split(r"(?<!\\)(?:[*?]|\[.*\])", pattern)]
    parts = IS_OPEN.split(value)
    if any_case:
        texts, parts = [text.lower() for text in texts], [part.lower() for part in parts]
    first, last = min(len(texts[0]), len(parts[0])), min(len(texts[-1]), len(parts[-1]))
    if len(texts) > 1 and texts[0][:first] != parts[0][:first]:
        return False
    if len(texts) > 1 and last and texts[-1][-last:] != parts[-1][-last:]:
        return False
    return None
