"""Programs whose output follows from their words and input alone: echo, printf, dirname, seq, tr, cut, sed, ...

Each computes exactly what the program writes, or raises UnknownOutput: then its output is known only where it runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

from launcher.scripts.programs.getopt import getopt
from launcher.scripts.programs.line_filters import paste, rev, sort, tac, uniq, words_of_lines
from launcher.scripts.programs.streams import UnknownOutput, closed, input_text
from launcher.scripts.programs.text_filters import awk, cut, grep, head_or_tail, sed, tr, wc
from launcher.scripts.words.files import normal_path
from launcher.scripts.words.lexer import ansi_text
from launcher.scripts.words.state import FIELDS, BashProcess, is_open


def echo(shell: BashProcess, words: list[str]) -> int:
    newline, escapes = True, False
    while words and re.fullmatch(r"-[neE]+", words[0]):
        newline &= "n" not in words[0]
        for letter in words[0][1:]:
            escapes = letter == "e" or (escapes and letter != "E")
        words = words[1:]
    text = " ".join(words)
    if escapes:
        text, stop, _ = text.partition("\\c")
        newline &= not stop
        text = ansi_text(re.sub(r"\\0([0-7]{1,3})", r"\\\1", text))
    shell.write(text + "\n" * newline)
    return 0


def format_text(form: str, words: list[str]) -> str:
    """What printf writes. Raises UnknownOutput."""
    form = ansi_text(form.replace("%%", "%\0"))
    pieces = re.split(r"(%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?[a-zA-Z\0])", form)
    left, out = list(words), []
    while True:
        count = len(left)
        for piece in pieces:
            if piece.endswith("\0") and piece.startswith("%"):
                out.append("%")
            elif piece.startswith("%") and len(piece) > 1:
                out.append(_converted(piece, left.pop(0) if left else ""))
            else:
                out.append(piece)
        if not left or len(left) == count or len(out) > FIELDS:
            return "".join(out)


def _converted(piece: str, word: str) -> str:
    kind, flags = piece[-1], piece[:-1]
    if "*" in piece or any(int(number) > FIELDS for number in re.findall(r"\d+", piece)):
        raise UnknownOutput
    if flags == "%" and kind in "sdibc" and is_open(word):
        return word
    closed(word)
    if kind in "sc":
        return (flags + "s") % (word if kind == "s" else word[:1])
    if kind == "b":
        return (flags + "s") % ansi_text(word)
    if kind == "q":
        return escaped(word)
    try:
        if kind in "diuxXo":
            text = word.strip() or "0"
            value = (
                ord(text[1])
                if text[0] in "'\""
                else int(text, 0 if re.match(r"[-+]?0[xX]", text) else 8 if re.match(r"[-+]?0\d", text) else 10)
            )
            return (flags + ("d" if kind in "iu" else kind)) % value
        if kind in "feEgG" and not re.search(r"[nN]", word):
            return (flags + kind) % float(word or 0)
    except (ValueError, OverflowError) as error:
        raise UnknownOutput from error
    raise UnknownOutput


def escaped(word: str) -> str:
    """`printf %q`: as bash writes it. Raises UnknownOutput for what it writes as $'...'."""
    if not (word.isascii() and word.isprintable()):
        raise UnknownOutput
    marked = re.sub(r"""[ '"\\|&;()<>!{}*\[\]?^$`,]""", lambda found: "\\" + found[0], word)
    return re.sub(r"^[#~]|(?<=[=:])~", lambda found: "\\" + found[0], marked) or "''"


def printf(shell: BashProcess, words: list[str]) -> int:
    if words[:1] == ["--"]:
        words = words[1:]
    if words[:1] == ["-v"] and len(words) > 2:
        shell.set(words[1], format_text(words[2], words[3:]))
        return 0
    if words:
        shell.write(format_text(words[0], words[1:]))
    return 0


def dirname(shell: BashProcess, words: list[str]) -> int:
    for word in _operands(words):
        shell.write(parent_folder(word) + "\n")
    return 0


def parent_folder(path: str) -> str:
    """dirname; exact also where the open part is the folder. Raises UnknownOutput."""
    stripped = path.rstrip("/")
    if not stripped:
        return "/" if path else "."
    folder, slash, name = stripped.rpartition("/")
    if is_open(name):
        raise UnknownOutput
    return (folder.rstrip("/") or "/") if slash else "."


def basename(shell: BashProcess, words: list[str]) -> int:
    suffix = ""
    while words and words[0].startswith("-"):
        if words[0] == "-s":
            suffix, words = words[1], words[2:]
        elif words[0] in ("-a", "--"):
            words = words[1:]
        else:
            raise UnknownOutput
    if not suffix and len(words) == 2:
        suffix, words = words[1], words[:1]
    for word in words:
        name = word.rstrip("/").rpartition("/")[2] or ("/" if word else "")
        if is_open(name) and ("/" not in word or is_open(name[:1])):
            raise UnknownOutput
        shell.write((name[: -len(suffix)] if suffix and name.endswith(suffix) and name != suffix else name) + "\n")
    return 0


def realpath(shell: BashProcess, words: list[str]) -> int:
    for word in _operands([word for word in words if word not in ("-f", "-m", "-e", "-s", "--canonicalize")]):
        shell.write(normal_path(shell, word) + "\n")
    return 0


def _operands(words: list[str]) -> list[str]:
    if words[:1] == ["--"]:
        return words[1:]
    if any(word.startswith("-") for word in words) or not words:
        raise UnknownOutput
    return words


def seq(shell: BashProcess, words: list[str]) -> int:
    closed(*words)
    separator, equal_width = "\n", False
    while words and re.match(r"-[a-z-]", words[0]):
        if words[0] == "-s" and len(words) > 1:
            separator, words = words[1], words[2:]
        elif words[0].startswith(("-s", "--separator=")):
            separator, words = words[0].partition("=")[2] or words[0][2:], words[1:]
        elif words[0] in ("-w", "--equal-width"):
            equal_width, words = True, words[1:]
        else:
            raise UnknownOutput
    try:
        numbers = [Decimal(word) for word in words]
    except InvalidOperation as error:
        raise UnknownOutput from error
    if not 1 <= len(numbers) <= 3 or not all(number.is_finite() and abs(number) < 10**15 for number in numbers):
        raise UnknownOutput
    first = numbers[0] if len(numbers) > 1 else Decimal(1)
    step = numbers[1] if len(numbers) == 3 else Decimal(1)
    last = numbers[-1]
    places = max(0, *(-int(number.as_tuple().exponent) for number in (first, step)))
    if not step or abs((last - first) / step) > FIELDS:
        raise UnknownOutput
    values = (
        [first + step * number for number in range(int((last - first) / step) + 1)]
        if (last - first) * step >= 0
        else []
    )
    texts = [f"{value:.{places}f}" for value in values]
    width = max(map(len, texts), default=0) if equal_width else 0
    shell.write(separator.join(text.zfill(width) for text in texts) + "\n" * bool(texts))
    return 0


def cat(shell: BashProcess, words: list[str]) -> int:
    if any(word.startswith("-") and word != "-" for word in words):
        raise UnknownOutput
    shell.write(input_text(shell, words))
    return 0


def expr(shell: BashProcess, words: list[str]) -> int:
    closed(*words)
    if len(words) != 3 or not all(re.fullmatch(r"-?\d{1,15}", words[place]) for place in (0, 2)):
        raise UnknownOutput
    left, right = int(words[0]), int(words[2])
    if words[1] in ("/", "%") and not right:
        raise UnknownOutput
    sign = 1 if (left < 0) == (right < 0) else -1
    quotient = abs(left) // abs(right) * sign if right else 0
    results = {
        "+": left + right, "-": left - right, "*": left * right, "/": quotient, "%": left - quotient * right,
        "=": left == right, "!=": left != right, "<": left < right, "<=": left <= right, ">": left > right,
        ">=": left >= right,
    }  # fmt: skip
    if words[1] not in results:
        raise UnknownOutput
    value = int(results[words[1]])
    shell.write(f"{value}\n")
    return 0 if value else 1


FILTERS: dict[str, Callable[[BashProcess, list[str]], int]] = {
    "awk": awk, "basename": basename, "cat": cat, "cut": cut, "dirname": dirname, "echo": echo, "egrep": grep,
    "expr": expr, "getopt": getopt, "grep": grep, "printf": printf, "realpath": realpath, "readlink": realpath,
    "paste": paste, "rev": rev, "sed": sed, "seq": seq, "sort": sort, "tac": tac, "tr": tr, "uniq": uniq, "wc": wc,
    "xargs": words_of_lines,
    "head": lambda shell, words: head_or_tail(shell, words, last=False),
    "tail": lambda shell, words: head_or_tail(shell, words, last=True),
}  # fmt: skip
"""By the name of the program."""
