"""Text of a script with its tree, as the grammar tree-sitter-bash reads it."""

from __future__ import annotations

import re
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from resource import RUSAGE_SELF, getrusage

from tree_sitter import Language, Node, Parser
from tree_sitter_bash import language

from launcher.scripts.words.state import BashProcess, StopReading

_STARTS = """
accelerate bash deepspeed docker env exec mpirun nohup python python3 ray sbatch sh srun ssh torchrun
"""
STARTS = frozenset(_STARTS.split())
"""Commands that may start a program."""


ESCAPED = re.compile(r"(?<!\\)\\[<>]")
NEGATED = re.compile(r"(?<![^\s;&|({`])!(?=((?:[ \t]|\\\n)+)(?:\{\s|\(\(|(?:while|until|if|for|case)\s))")
"""`!` before a compound command: the grammar knows it only before a simple command or a subshell."""
BRACKETS = re.compile(r"\[\[\s(?:(?:(?!\[\[\s)[^\n])*?[^\n\]])?\s\]\]")
EXTENDED = re.compile(r"(?<=[=\s])(?:==?|!=)\s+([^\s()&|;<>\"'`$]*[@?*+!]\([^\n()\"'`$]*\)[^\s()&|;<>\"'`$]*)(?=\s)")
"""A pattern such as `*@(a|b)*` in `[[ ]]`, which the grammar does not always know."""
ROUNDS = 20
"""How often a text is parsed again at most, so that a hostile one costs no more than its length."""

PARSE_SECONDS = 10
PARSE_BYTES = 400_000_000
"""CPU time and memory to parse a text with: where it is no bash, the grammar takes both in the square of the length."""
LONG = 1 << 16


def _tree(content: bytes) -> Node:
    """The grammar's tree of a text.

    The grammar takes the line after one of two or more assignments for their command, also where that is `else` or
    `fi`; so it gets a `;` at the end of such a line."""
    parser = Parser(Language(language()))
    end = time.process_time() + PARSE_SECONDS
    root = _parse(parser, content, end)
    for _ in range(ROUNDS):
        places = [*_unended(root, content)]
        if not places:
            break
        changed = bytearray(content)
        for place in places:
            changed[place : place + 1] = b";"
        content = bytes(changed)
        root = _parse(parser, content, end)
    return root


def _parse(parser: Parser, content: bytes, end: float) -> Node:
    """The tree of a text; of a long one, the parser is stopped where it takes too long. Raises StopReading."""
    if len(content) < LONG:
        return parser.parse(content).root_node
    most = _peak_bytes() + PARSE_BYTES

    def too_much(offset: int, error: bool) -> bool:
        return time.process_time() > end or _peak_bytes() > most

    try:
        return parser.parse(lambda offset, point: content[offset : offset + LONG], progress_callback=too_much).root_node
    except ValueError as error:
        raise StopReading("its syntax takes too much time or memory to read") from error


def _peak_bytes() -> int:
    """The most memory that this process has had."""
    return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _unended(root: Node, content: bytes) -> Iterator[int]:
    """Where assignments end whose command stands in a later line."""
    left = [root]
    while left:
        node = left.pop()
        left += node.children
        if node.type != "command" or not node.children or node.children[0].type != "variable_assignment":
            continue
        for before, after in pairwise(child for child in node.children if child.type != "comment"):
            between = content[before.end_byte : after.start_byte]
            blank = between[:1] in (b" ", b"\t", b"\n")
            if before.type == "variable_assignment" and blank and b"\n" in between.replace(b"\\\n", b""):
                yield before.end_byte


def _without_patterns(found: re.Match[str]) -> str:
    """A line's `[[ ... ]]` with plain characters for its extended patterns, for the grammar alone."""
    return EXTENDED.sub(lambda one: one[0][: one.start(1) - one.start()] + "x" * len(one[1]), found[0])


def _is_list(node: Node) -> bool:
    """Whether it is `left && right`, also with redirects after it, which the grammar takes for those of the list."""
    body = node.child_by_field_name("body") if node.type == "redirected_statement" else None
    return (body or node).type == "list"


class ScriptSource:
    """Text of a script with its tree; offsets count characters."""

    def __init__(self, text: str, file: str, line: int) -> None:
        self.text, self.file, self.line = text, file, line
        self.negated = {found.end(1): found.start() for found in NEGATED.finditer(text)}
        """Where compound commands after `!` may begin, with the place of the `!`."""
        # The grammar takes `\<` for a redirect. Only where commands begin and end is read from the tree.
        shown = BRACKETS.sub(_without_patterns, NEGATED.sub(" ", ESCAPED.sub("==", text)))
        content = shown.encode("utf-8", "replace")
        self.root = _tree(content)
        self.redirected: set[int] = set()
        """Nodes after which redirects stand that the grammar takes for those of a whole pipeline or list."""
        self.characters: list[int] | None = None
        if len(content) != len(text):
            self.characters = []
            for place, character in enumerate(text):
                self.characters += [place] * len(character.encode("utf-8", "replace"))
            self.characters.append(len(text))
        self.line_starts = [0]
        for place, character in enumerate(text):
            if character == "\n":
                self.line_starts.append(place + 1)

    def start(self, node: Node) -> int:
        """Where a node begins."""
        return self.characters[node.start_byte] if self.characters else node.start_byte

    def end(self, node: Node) -> int:
        """The place after a node."""
        return self.characters[node.end_byte] if self.characters else node.end_byte

    def text_of(self, node: Node) -> str:
        """As it is written."""
        begin = self.start(node)
        return self.text[self.negated.get(begin, begin) : self.end(node)]

    def negates(self, node: Node) -> bool:
        """Whether `!` before a compound command negates this node: all of its pipeline, and no list."""
        if self.start(node) not in self.negated or not node.is_named or _is_list(node):
            return False
        above = node.parent
        within = above is not None and above.type in ("pipeline", "redirected_statement") and not _is_list(above)
        return not (above is not None and within and self.start(above) == self.start(node))

    def line_at(self, place: int) -> int:
        """The number of its line in the file."""
        return self.line + bisect_right(self.line_starts, place) - 1


@lru_cache(maxsize=256)
def parsed(text: str, file: str, line: int) -> ScriptSource:
    """The tree of a text; loops read the same one again and again."""
    return ScriptSource(text, file, line)


def matters(source: ScriptSource, node: Node) -> bool:
    """Whether a command does more than `true` or a message."""
    return source.text_of(node).split()[:1] not in (["true"], [":"], ["echo"])


def is_echo(source: ScriptSource, node: Node) -> bool:
    """Whether it is `echo` with its words, and no more."""
    return node.type == "command" and source.text_of(node.children[0]) == "echo"


def commands_in(source: ScriptSource, node: Node, limit: int = 3000) -> Iterator[tuple[str, str]]:
    """The name and the text of all commands in a node."""
    left = [node]
    while left and limit:
        limit -= 1
        one = left.pop()
        if one.type == "command_name":
            yield source.text_of(one), source.text_of(one.parent or one)
        elif one.type not in ("function_definition", "command_substitution"):
            left += one.children


def called(shell: BashProcess, source: ScriptSource, *nodes: Node, depth: int = 0) -> Iterator[tuple[str, str]]:
    """The name and the text of all commands in a branch, and in the functions that it calls."""
    for node in nodes:
        for name, text in commands_in(source, node):
            yield name, text
            if name in shell.functions and depth < 3:
                inner, body, _ = shell.functions[name]
                assert isinstance(inner, ScriptSource) and isinstance(body, Node)
                yield from called(shell, inner, body, depth=depth + 1)


def ends_script(shell: BashProcess, source: ScriptSource, *nodes: Node) -> bool:
    """Whether a branch ends the script: `exit`, or a function that does."""
    return any(name == "exit" for name, _ in called(shell, source, *nodes))


def leaves_loop(source: ScriptSource, *nodes: Node) -> bool:
    """Whether a branch leaves the loop around it."""
    return any(name in ("break", "return", "exit") for node in nodes for name, _ in commands_in(source, node))


def launches(shell: BashProcess, source: ScriptSource, *nodes: Node) -> bool:
    """Whether a branch starts programs that train: `ray start` does not."""
    return any(
        starts_program(name) and (name != "ray" or "job" in text.split())
        for name, text in called(shell, source, *nodes)
    )


def waits(shell: BashProcess, source: ScriptSource, body: Node) -> bool:
    """Whether the body of a loop only sleeps until something is there."""
    return any(name == "sleep" for name, _ in commands_in(source, body)) and not launches(shell, source, body)


def starts_program(name: str) -> bool:
    """Whether the command may start a program."""
    return name.rpartition("/")[2] in STARTS
