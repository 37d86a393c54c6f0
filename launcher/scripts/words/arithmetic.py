"""Arithmetic of bash: 64-bit integers, as in `$(( 2 * n + 1 ))`, `(( i++ ))`, `let` and subscripts."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from launcher.scripts.words.state import IS_OPEN, BashProcess
from launcher.scripts.words.values import element, elements, keys, list_place

TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+#[0-9a-zA-Z@_]+|0[xX][0-9a-fA-F]+|\d+)|(?P<name>[A-Za-z_]\w*)|(?P<open>[\U000f0000-\U000ffffd])"
    r"|(?P<sign><<=|>>=|\*\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&^|]=|[-+*/%<>=!~&^|?:,()\[\]]))"
)
NESTING = 25
TOKENS = 2_000

BINARY: dict[str, int] = {
    "**": 13, "*": 12, "/": 12, "%": 12, "+": 11, "-": 11, "<<": 10, ">>": 10, "<": 9, ">": 9, "<=": 9, ">=": 9,
    "==": 8, "!=": 8, "&": 7, "^": 6, "|": 5, "&&": 4, "||": 3, "?": 2, ",": 0,
}  # fmt: skip
ASSIGNS = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "^=", "|=")
COMPUTE: dict[str, Callable[[int, int], int]] = {
    "*": operator.mul, "+": operator.add, "-": operator.sub, "&": operator.and_, "^": operator.xor, "|": operator.or_,
    "<<": lambda a, b: a << (b & 63), ">>": lambda a, b: a >> (b & 63), "<": operator.lt, ">": operator.gt,
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, ",": lambda a, b: b,
}  # fmt: skip


class BadArithmetic(ValueError):
    """An expression that bash refuses."""


@dataclass
class Place:
    """A variable or element that an operand names."""

    name: str
    key: int | str | None = None
    open: bool = False
    """Whether which element it is only running could tell."""


class Expression:
    """One expression, computed while it is read; None is a value that only running could tell."""

    def __init__(self, shell: BashProcess, text: str, depth: int = 0) -> None:
        if depth > NESTING:
            raise BadArithmetic("variables that name each other without end")
        self.shell, self.depth, self.at, self.skipping = shell, depth, 0, 0
        self.tokens: list[tuple[str, str]] = []
        self.text = text
        place, end = 0, len(text.rstrip())
        while place < end:
            found = TOKEN.match(text, place)
            if found is None:
                raise BadArithmetic(f"{shell.reading.visible(text.strip())[:80]!r} is not arithmetic")
            self.tokens.append((found.lastgroup or "", found[found.lastgroup or 0]))
            place = found.end()
            if found["name"] and text.startswith("[", place) and self.has_names(found["name"]):
                key = text[place + 1 : text.find("]", place)]
                self.tokens += [("sign", "["), ("key", key)]
                place += 1 + len(key)
            if len(self.tokens) > TOKENS:
                raise BadArithmetic(f"more than {TOKENS:,} operands")
        shell.reading.step(1 + len(self.tokens) // 10)

    def has_names(self, name: str) -> bool:
        """Whether it is an array whose elements have names, which are no arithmetic."""
        variable = self.shell.variable(name)
        return variable is not None and variable.kind == "associative"

    def value(self) -> int | None:
        """Computes all of it; an empty expression is 0."""
        if not self.tokens:
            return 0
        result = self.binary(0)
        if self.at < len(self.tokens):
            raise BadArithmetic(
                f"{self.tokens[self.at][1]!r} in {self.shell.reading.visible(self.text.strip())[:80]!r}"
            )
        return result

    def peek(self) -> str:
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        return text if kind == "sign" else ""

    def take(self, sign: str) -> bool:
        if self.peek() == sign:
            self.at += 1
            return True
        return False

    def need(self, sign: str) -> None:
        if not self.take(sign):
            raise BadArithmetic(f"{sign} is missing in {self.shell.reading.visible(self.text.strip())[:80]!r}")

    def binary(self, least: int, level: int = 0) -> int | None:
        """Operators that bind at least so strongly."""
        if level > 80:
            raise BadArithmetic("too many brackets")
        left = self.unary(level + 1)
        while (sign := self.peek()) in BINARY and BINARY[sign] >= least:
            self.at += 1
            if sign == "?":
                left = self.choice(left, level)
            elif sign in ("&&", "||"):
                left = self.short_circuit(sign, left, level)
            else:
                right = self.binary(BINARY[sign] + (sign != "**"), level + 1)
                left = self.computed(sign, left, right)
        return left

    def choice(self, condition: int | None, level: int) -> int | None:
        self.skipping += condition == 0
        first = self.binary(1, level + 1)
        self.skipping -= condition == 0
        self.need(":")
        self.skipping += bool(condition)
        second = self.binary(2, level + 1)
        self.skipping -= bool(condition)
        return None if condition is None else first if condition else second

    def short_circuit(self, sign: str, left: int | None, level: int) -> int | None:
        decided = left is not None and bool(left) == (sign == "||")
        self.skipping += decided
        right = self.binary(BINARY[sign] + 1, level + 1)
        self.skipping -= decided
        if decided:
            return int(sign == "||")
        if right is not None and bool(right) == (sign == "||"):
            return int(sign == "||")
        return None if left is None or right is None else int(bool(right))

    def computed(self, sign: str, left: int | None, right: int | None) -> int | None:
        if left is None or right is None:
            return None
        if sign in "/%":
            if not right:
                if self.skipping:
                    return 0
                raise BadArithmetic("division by 0")
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return wrapped(quotient if sign == "/" else left - quotient * right)
        if sign == "**":
            if right < 0:
                raise BadArithmetic("an exponent below 0")
            return wrapped(pow(left, right, 1 << 64))
        return wrapped(int(COMPUTE[sign](left, right)))

    def unary(self, level: int) -> int | None:
        if level > 80:
            raise BadArithmetic("too many brackets")
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        self.at += 1
        if kind == "number":
            return number(text)
        if kind == "open":
            return None
        if kind == "name":
            return self.named(text, level)
        if text == "(":
            value = self.binary(0, level + 1)
            self.need(")")
            return value
        if text in ("++", "--"):
            kind, name = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
            if kind == "name":
                self.at += 1
                place = self.place(name, level)
                value = self.read(place)
                return self.assign(place, None if value is None else wrapped(value + (1 if text == "++" else -1)))
            text = text[0]
        if text in ("+", "-", "!", "~") and text:
            value = self.unary(level + 1)
            if value is None:
                return None
            return wrapped({"+": value, "-": -value, "!": int(not value), "~": ~value}[text])
        raise BadArithmetic(f"an operand is missing in {self.shell.reading.visible(self.text.strip())[:80]!r}")

    def place(self, name: str, level: int) -> Place:
        if not self.take("["):
            return Place(name)
        key: int | str | None
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "key":
            key = self.tokens[self.at][1]
            self.at += 1
        else:
            key = self.binary(0, level + 1)
            if isinstance(key, int) and key < 0 and not self.skipping:  # from the end
                places = keys(self.shell, name)
                known = list_place(self.shell, elements(self.shell, name)) == len(places)
                key = key + max((one for one in places if isinstance(one, int)), default=-1) + 1 if known else None
                if key is not None and key < 0:
                    raise BadArithmetic(f"{name} has no such element")
        self.need("]")
        return Place(name, key, key is None)

    def named(self, name: str, level: int) -> int | None:
        place = self.place(name, level)
        sign = self.peek()
        if sign in ASSIGNS and sign:
            self.at += 1
            right = self.binary(1, level + 1)
            return self.assign(place, right if sign == "=" else self.computed(sign[:-1], self.read(place), right))
        value = self.read(place)
        if sign in ("++", "--"):
            self.at += 1
            self.assign(place, None if value is None else wrapped(value + (1 if sign == "++" else -1)))
        return value

    def read(self, place: Place) -> int | None:
        if self.skipping:
            return 0
        if place.open or (self.shell.variable(place.name) is None and self.shell.is_open_name(place.name)):
            return None
        text = (self.shell.get(place.name) if place.key is None else element(self.shell, place.name, place.key)) or ""
        if IS_OPEN.search(text):
            return None
        return Expression(self.shell, text, self.depth + 1).value()

    def assign(self, place: Place, value: int | None) -> int | None:
        if place.open and not self.skipping:
            raise BadArithmetic(f"which element of {place.name} is set is known only when the script runs")
        if not self.skipping:
            text = self.text.strip()
            open_text = f"(({text}))", "{" + text + "}"
            new = str(value) if value is not None else self.shell.open_value(*open_text, single=True)
            self.shell.set(place.name, new, key=place.key)
        return value


def wrapped(value: int) -> int:
    """As a signed 64-bit integer."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def number(text: str) -> int:
    """`10`, `0x1f`, `017` or `2#101`."""
    try:
        if "#" in text:
            base, digits = text.split("#")
            if not 2 <= int(base) <= 36:
                raise BadArithmetic(f"{text!r}: a base from 2 to 36 was expected")
            return wrapped(int(digits, int(base)))
        if text[:2].lower() == "0x":
            return wrapped(int(text, 16))
        return wrapped(int(text, 8) if len(text) > 1 and text.startswith("0") else int(text[:40]))
    except ValueError as error:
        raise BadArithmetic(f"{text[:40]!r} is not a number") from error


def evaluate(shell: BashProcess, text: str) -> int | None:
    """The value of an expression whose parameters are expanded; None where only running could tell it.

    Raises BadArithmetic."""
    return Expression(shell, text.replace('"', "").replace("\\\n", "")).value()
