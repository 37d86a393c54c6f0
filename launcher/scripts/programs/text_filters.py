"""Programs that change lines of text: tr, cut, sed, grep, head, tail, wc, awk. Exact, or UnknownOutput."""

from __future__ import annotations

import re

import regex

from launcher.scripts.programs.streams import UnknownOutput, closed, input_text
from launcher.scripts.words.lexer import ansi_text
from launcher.scripts.words.state import BashProcess, is_open


def _characters(text: str) -> str:
    classes = {
        "upper": "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "lower": "abcdefghijklmnopqrstuvwxyz", "digit": "0123456789",
        "space": "\t\n\v\f\r ", "blank": "\t ", "punct": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    }  # fmt: skip
    classes["alpha"] = classes["upper"] + classes["lower"]
    classes["alnum"] = classes["digit"] + classes["alpha"]
    out = []
    for found in re.finditer(r"\[:(\w+):\]|(\\[0-7]{1,3}|\\.|.)(?:-(\\.|.))?", text, re.DOTALL):
        if found[1]:
            if found[1] not in classes:
                raise UnknownOutput
            out.append(classes[found[1]])
            continue
        first = ansi_text(found[2])
        last = ansi_text(found[3]) if found[3] else first
        if len(first) != 1 or len(last) != 1 or last < first:
            raise UnknownOutput
        out.append("".join(map(chr, range(ord(first), ord(last) + 1))))
    return "".join(out)


def tr(shell: BashProcess, words: list[str]) -> int:
    text = input_text(shell)
    flags = ""
    while words and re.fullmatch(r"-[cCds]+", words[0]):
        flags, words = flags + words[0][1:], words[1:]
    closed(text, *words)
    if not text.isascii() or not words or any(word.startswith("--") for word in words):
        raise UnknownOutput
    sets = [_characters(word) for word in words]
    first = sets[0]
    if "c" in flags.lower():
        first = "".join(chr(number) for number in range(128) if chr(number) not in sets[0])
    if "d" in flags:
        text = "".join(character for character in text if character not in first)
    elif len(sets) == 2:
        if not sets[1]:
            raise UnknownOutput
        second = sets[1] + sets[1][-1] * (len(first) - len(sets[1]))
        text = text.translate({ord(a): b for a, b in zip(reversed(first), reversed(second[: len(first)]), strict=True)})
    if "s" in flags:
        squeezed = sets[-1] if len(sets) == 2 else first
        text = re.sub(r"(.)\1+", lambda found: found[1] if found[1] in squeezed else found[0], text, flags=re.DOTALL)
    shell.write(text)
    return 0


def _chosen(ranges: str, count: int) -> list[int]:
    chosen: set[int] = set()
    for part in ranges.split(","):
        found = re.fullmatch(r"(\d{1,6})?(-)?(\d{1,6})?", part)
        if not found or not part or part == "-":
            raise UnknownOutput
        first = int(found[1] or 1)
        last = int(found[3] or count) if found[2] else first
        chosen.update(range(first, min(last, count) + 1))
    return sorted(number for number in chosen if 1 <= number <= count)


def cut(shell: BashProcess, words: list[str]) -> int:
    delimiter, fields, characters, only, files = "\t", "", "", False, []
    left = list(words)
    while left:
        word = left.pop(0)
        if word in ("-d", "-f", "-c") and left:
            word += left.pop(0)
        if word.startswith("-d"):
            delimiter = word[2:]
        elif word.startswith("-f"):
            fields = word[2:]
        elif word.startswith("-c"):
            characters = word[2:]
        elif word.startswith("--delimiter="):
            delimiter = word[12:]
        elif word.startswith("--fields="):
            fields = word[9:]
        elif word == "-s":
            only = True
        elif word.startswith("-") and word != "-":
            raise UnknownOutput
        else:
            files.append(word)
    text = input_text(shell, files)
    closed(text)
    if len(delimiter) != 1 or bool(fields) == bool(characters) or (characters and not text.isascii()):
        raise UnknownOutput
    for line in text.splitlines():
        if characters:
            shell.write("".join(line[number - 1] for number in _chosen(characters, len(line))) + "\n")
        elif delimiter in line:
            parts = line.split(delimiter)
            shell.write(delimiter.join(parts[number - 1] for number in _chosen(fields, len(parts))) + "\n")
        elif not only:
            shell.write(line + "\n")
    return 0


def posix_expression(text: str, *, extended: bool) -> str:
    """A regular expression of sed and grep for Python. Raises UnknownOutput where it has extensions."""
    out, at = [], 0
    while at < len(text):
        character = text[at]
        if character == "[":
            found = re.compile(r"\[\^?\]?(?:\[:\w+:\]|[^\]])*\]").match(text, at)
            if not found:
                raise UnknownOutput
            inside = re.sub(r"\[(?!:)", r"\\[", found[0][1:].replace("\\", "\\\\"))
            out.append("[" + inside)
            at = found.end()
            continue
        if character == "\\":
            after = text[at + 1 : at + 2]
            if after in "(){}+?|" and after:
                out.append(re.escape(after) if extended else after)
            elif after and after in "nt":
                out.append("\\" + after)
            elif after.isalnum() or not after:
                raise UnknownOutput
            else:
                out.append(re.escape(after))
            at += 2
            continue
        literal = (character in "(){}+?|" and not extended) or (character == "*" and (at == 0 or text[at - 1] in "(|^"))
        out.append(re.escape(character) if literal else character)
        at += 1
    return "".join(out)


def sed(shell: BashProcess, words: list[str]) -> int:
    scripts, files, extended, quiet = [], [], False, False
    left = list(words)
    while left:
        word = left.pop(0)
        if word in ("-E", "-r"):
            extended = True
        elif word == "-n":
            quiet = True
        elif word == "-e" and left:
            scripts.append(left.pop(0))
        elif word.startswith("-"):
            raise UnknownOutput
        else:
            files.append(word)
    if not scripts:
        scripts, files = files[:1], files[1:]
    text = input_text(shell, files)
    closed(text, *scripts)
    lines = text.splitlines()
    if quiet and len(scripts) == 1 and (found := re.fullmatch(r"(\d{1,6})p", scripts[0])):
        lines = lines[int(found[1]) - 1 : int(found[1])]
    elif quiet:
        raise UnknownOutput
    else:
        for script in scripts:
            for command in re.split(r";\s*(?=s\W)", script):
                lines = [_substituted(command.strip(), line, extended) for line in lines]
    shell.write("".join(line + "\n" for line in lines) if text.endswith("\n") or not text else "\n".join(lines))
    return 0


def _substituted(command: str, line: str, extended: bool) -> str:
    mark = re.escape(command[1:2])
    found = re.fullmatch(rf"s{mark}((?:\\.|(?!{mark}).)*){mark}((?:\\.|(?!{mark}).)*){mark}(g?)", command, re.DOTALL)
    if not found or not mark or command[1] in "\\\n":
        raise UnknownOutput
    pattern, by = (part.replace("\\" + command[1], command[1]) for part in found.group(1, 2))
    if command[1] in ".*[]^$+?(){}|" and "\\" + command[1] in found[1]:
        raise UnknownOutput

    def replacement(match: regex.Match[str]) -> str:
        def value(code: re.Match[str]) -> str:
            if code[0] == "&":
                return match[0]
            if code[1].isdigit():
                return match[int(code[1])] or ""
            return "\n" if code[1] == "n" else code[1]

        return re.sub(r"\\(.)|&", value, by)

    try:
        expression = regex.compile(posix_expression(pattern, extended=extended), regex.POSIX)
        return expression.sub(replacement, line, count=0 if found[3] else 1, timeout=1.0)
    except (regex.error, TimeoutError, IndexError) as error:
        raise UnknownOutput from error


def grep(shell: BashProcess, words: list[str]) -> int:
    flags, left = "", list(words)
    while left and re.fullmatch(r"-[qioEFvc]+", left[0]):
        flags += left.pop(0)[1:]
    if left[:1] == ["-e"]:
        left.pop(0)
    if not left or left[0].startswith("-"):
        raise UnknownOutput
    pattern, *files = left
    text = input_text(shell, files)
    closed(text, pattern)
    expression = regex.escape(pattern) if "F" in flags else posix_expression(pattern, extended="E" in flags)
    try:
        found = regex.compile(expression, regex.IGNORECASE if "i" in flags else 0)
        lines = [line for line in text.splitlines() if bool(found.search(line, timeout=1.0)) != ("v" in flags)]
        if "o" in flags:
            shown = [match[0] for line in lines for match in found.finditer(line, timeout=1.0) if match[0]]
        else:
            shown = lines
    except (regex.error, TimeoutError) as error:
        raise UnknownOutput from error
    if "c" in flags:
        shell.write(f"{len(lines)}\n")
    elif "q" not in flags:
        shell.write("".join(line + "\n" for line in shown))
    return 0 if lines else 1


def head_or_tail(shell: BashProcess, words: list[str], *, last: bool) -> int:
    count, files, left, rest = 10, [], list(words), False
    while left:
        word = left.pop(0)
        if word == "-n" and left:
            word = "-n" + left.pop(0)
        if found := re.fullmatch(r"(?:-n?|--lines=)(\d{1,6})", word):
            count, rest = int(found[1]), False
        elif found := re.fullmatch(r"(?:-n|--lines=)" + (r"\+" if last else "-") + r"(\d{1,6})", word):
            count, rest = int(found[1]), True
        elif word.startswith(("-", "+")):
            raise UnknownOutput
        else:
            files.append(word)
    lines = input_text(shell, files).splitlines(keepends=True)
    if rest:  # `tail -n +2`: from the second line on; `head -n -2`: without the last two
        begin, end = (max(count - 1, 0), len(lines)) if last else (0, max(len(lines) - count, 0))
    else:
        begin, end = (max(len(lines) - count, 0), len(lines)) if last else (0, count)
    shell.write("".join(lines[begin:end]))
    return 0


def wc(shell: BashProcess, words: list[str]) -> int:
    text = input_text(shell)
    if words not in (["-l"], ["-w"], ["-c"], ["-m"]) or (is_open(text) and words != ["-l"]):
        raise UnknownOutput
    count = {"-l": text.count("\n"), "-w": len(text.split()), "-c": len(text.encode()), "-m": len(text)}[words[0]]
    shell.write(f"{count}\n")
    return 0


def awk(shell: BashProcess, words: list[str]) -> int:
    separator, left = None, list(words)
    if left and left[0].startswith("-F"):
        first = left.pop(0)
        separator = first[2:] or (left.pop(0) if left else "")
    found = re.fullmatch(r"\s*\{\s*print\s+\$(\d{1,4}|NF)\s*;?\s*\}\s*", left[0]) if left else None
    if not found or (separator is not None and (len(separator) != 1 or separator in "|\\.*+?[(^$")):
        raise UnknownOutput
    text = input_text(shell, left[1:])
    closed(text)
    for line in text.splitlines():
        fields = line.split() if separator in (None, " ") else line.split(separator)
        place = len(fields) if found[1] == "NF" else int(found[1])
        shell.write((line if place == 0 else fields[place - 1] if place <= len(fields) else "") + "\n")
    return 0
