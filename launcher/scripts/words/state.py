"""What a launch script has set so far: variables, functions, options, and what is known only where it runs.

A part of a value that is known only when the script runs (a date, an answer of nvidia-smi) is one character of the
private use area of Unicode in every value here; `Reading.visible` writes its placeholder instead, such as `{date +%F}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from launcher.scripts.words.names import AT_START, CLUSTER, MACHINE

FILE_BYTES = 1 << 20  # the longest launch scripts of people have 50 KB
VALUE_CHARACTERS = 1 << 17  # what Linux allows for one argument
STEPS = 100_000  # commands and expansions in all: a few seconds
ITERATIONS = 2_000  # of one loop: what counts to more does no launching
LAUNCHES = 300  # a sweep of that many is a mistake
DEPTH = 30  # functions, substitutions and files within each other; each takes about 20 Python frames
FILES = 50  # other scripts read
FIELDS = 10_000  # words of one command: the longest real ones have 300
OPEN_VALUES = 5_000  # each is one character of a private use area of 65,534

FIRST_OPEN, FIRST_HEREDOC = 0xF0000, 0x100000
IS_OPEN = re.compile("[\U000f0000-\U000ffffd]")
PRIVATE = re.compile("[\U000f0000-\U000ffffd\U00100000-\U0010fffd]")

NOT_SET = "not set in the script; empty as in a clean shell"
Kind = Literal["scalar", "indexed", "associative"]


@dataclass(frozen=True)
class OpenPart:
    """Something that only running the script could tell."""

    line: str
    """`file:line`."""
    text: str
    """As the script has it: `$(date +%F)`, or a condition."""
    placeholder: str
    """What stands for it in the words: `{date +%F}`; empty where no word holds it."""
    note: str = ""
    """What was assumed instead: which branch was taken and why."""


@dataclass(frozen=True)
class UnreadPart:
    """What could not be read, and why."""

    line: str
    reason: str
    unset: str = ""
    """The variable (or the number of an argument of the script) without whose value bash ends there."""

    def __str__(self) -> str:
        return f"{self.line}: {self.reason}"


@dataclass(frozen=True)
class Wrapper:
    """A command that starts the program: torchrun, srun, `ray job submit`, ..."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Its options without dashes: `nnodes`, `nproc-per-node`; an empty value is a flag."""


@dataclass(frozen=True)
class Launch:
    """One program that the script starts."""

    line: str
    """`file:line` of the command."""
    program: str
    """The module (`verl.trainer.main_ppo`) or file (`recipe/dapo/main_dapo.py`)."""
    words: tuple[str, ...]
    """Its arguments, as bash would hand them over."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Exported variables, those before the command, of `env` and of Ray's runtime environment."""
    wrappers: tuple[Wrapper, ...] = ()
    """From the outermost to the innermost."""
    folder: str = ""
    """The working folder, as far as the script sets it."""


class StopReading(Exception):
    """The script cannot be read any further: a limit, or a construct that would make all that follows wrong."""


class ExitScript(Exception):
    """`exit`, or an error that ends the shell."""

    def __init__(self, status: int = 0) -> None:
        super().__init__(status)
        self.status = status


class ReturnFromFunction(ExitScript):
    """`return` of a function or a sourced file."""


class LeaveLoop(Exception):
    """`break` and `continue`, of so many loops."""

    def __init__(self, levels: int, again: bool) -> None:
        super().__init__(levels)
        self.levels, self.again = levels, again


@dataclass
class Variable:
    """A variable; a scalar has its value at 0."""

    values: dict[int | str, str]
    kind: Kind = "scalar"
    exported: bool = False
    readonly: bool = False
    integer: bool = False
    case: Literal["", "upper", "lower"] = ""
    reference: str | None = None
    """The name that it stands for (`declare -n`); empty until its first assignment names one."""


@dataclass(frozen=True)
class HereDocument:
    """Text after `<<`; `literal` where its delimiter is quoted."""

    operator: str
    text: str
    literal: bool
    line: int


@dataclass
class InputStream:
    """What a command reads; `text` is None where only running could tell."""

    text: str | None = ""
    position: int = 0
    read: bool = False


@dataclass
class TextSink:
    """What commands wrote; `known` is False once one of them wrote what only running could tell."""

    parts: list[str] = field(default_factory=list)
    known: bool = True
    size: int = 0
    choices: list[tuple[str, ...]] = field(default_factory=list)
    """For each part of which only running could tell which text it is: the texts, the one to assume first."""

    def write(self, text: str) -> None:
        self.size += len(text)
        if self.size > VALUE_CHARACTERS:
            raise StopReading(f"output longer than {VALUE_CHARACTERS:,} characters")
        self.parts.append(text)

    @property
    def text(self) -> str | None:
        return "".join(self.parts) if self.known else None


@dataclass
class Reading:
    """What all shells of one reading share: the limits, and what was found."""

    root: Path
    """Folder of the script; files that it names are looked for here too."""
    steps: int = 0
    depth: int = 0
    launches: list[Launch] = field(default_factory=list)
    others: list[Launch] = field(default_factory=list)
    open: dict[tuple[str, str, str], OpenPart] = field(default_factory=dict)
    refused: dict[UnreadPart, None] = field(default_factory=dict)
    placeholders: dict[str, int] = field(default_factory=dict)
    """Each with its number, in the order of the characters that stand for them."""
    placeholder_names: list[str] = field(default_factory=list)
    choices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By character: the values of which it is one, the one that conditions assume first."""
    lists: dict[str, str] = field(default_factory=dict)
    """By character that stands for any number of words: the character of the same placeholder for one value."""
    list_characters: dict[str, str] = field(default_factory=dict)
    """The other way round."""
    single: set[str] = field(default_factory=set)
    """Characters of values that are surely one word: numbers."""
    documents: list[HereDocument] = field(default_factory=list)
    written: dict[str, str | None] = field(default_factory=dict)
    """Files that the script writes, never written here; None where the text is not known."""
    files: int = 0
    stopped_at: str = ""
    """`file:line` where a limit ended the reading."""

    def step(self, cost: int = 1) -> None:
        """Counts work."""
        self.steps += cost
        if self.steps > STEPS:
            raise StopReading(f"takes more than {STEPS:,} steps")

    def visible(self, text: str) -> str:
        """`text` with the placeholder of each open part, and with `<<` for each here-document."""
        if text.isascii():
            return text
        parts = []
        for character in text:
            number = ord(character)
            if FIRST_OPEN <= number < FIRST_HEREDOC:
                parts.append(self.placeholder_names[number - FIRST_OPEN])
            elif number >= FIRST_HEREDOC:
                parts.append(self.documents[number - FIRST_HEREDOC].operator[1:])
            else:
                parts.append(character)
        return "".join(parts)

    def open_character(self, placeholder: str) -> str:
        """The character that stands for a placeholder."""
        if placeholder not in self.placeholders:
            if len(self.placeholder_names) >= OPEN_VALUES:
                raise StopReading(f"more than {OPEN_VALUES:,} values that only running could tell")
            self.placeholders[placeholder] = len(self.placeholder_names)
            self.placeholder_names.append(placeholder)
        return chr(FIRST_OPEN + self.placeholders[placeholder])

    def list_character(self, character: str) -> str:
        """The character for any number of words that a value splits into."""
        if character in self.lists:
            return character
        if character not in self.list_characters:
            if len(self.placeholder_names) >= OPEN_VALUES:
                raise StopReading(f"more than {OPEN_VALUES:,} values that only running could tell")
            found = chr(FIRST_OPEN + len(self.placeholder_names))
            self.placeholder_names.append(self.visible(character))
            self.list_characters[character], self.lists[found] = found, character
        return self.list_characters[character]

    def is_list(self, text: str) -> bool:
        """Whether it may be any number of words."""
        return bool(self.lists) and not text.isascii() and any(character in self.lists for character in text)

    def as_one(self, text: str) -> str:
        """The text where it is one value: joined, or of one variable."""
        if not self.is_list(text):
            return text
        return "".join(self.lists.get(character, character) for character in text)

    def add_document(self, document: HereDocument) -> str:
        """The character that stands for it."""
        if len(self.documents) >= OPEN_VALUES:
            raise StopReading(f"more than {OPEN_VALUES:,} here-documents")
        self.documents.append(document)
        return chr(FIRST_HEREDOC + len(self.documents) - 1)


def first_variables(given: Mapping[str, str]) -> dict[str, Variable]:
    """What a new shell has: `given`, its environment, and what it sets itself."""
    exported = {name: Variable({0: value}, exported=True) for name, value in given.items() if name not in AT_START}
    return {name: Variable({0: value}, exported=name in given) for name, value in AT_START.items()} | exported


def is_open(text: str) -> bool:
    """Whether a part of it is known only when the script runs."""
    return not text.isascii() and IS_OPEN.search(text) is not None


Run = Callable[["BashProcess", str, str, int], int]


@dataclass
class BashProcess:
    """One shell: what a subshell copies and a new shell begins without."""

    reading: Reading
    run_text: Run
    """Runs text as a script in the given shell: (shell, text, name, first line) -> status."""
    name: str
    """`$0`."""
    file: str
    """The file whose text runs, for messages and BASH_SOURCE."""
    arguments: list[str] = field(default_factory=list)
    scopes: list[dict[str, Variable]] = field(default_factory=lambda: [{}])
    functions: dict[str, tuple[object, object, str]] = field(default_factory=dict)
    """Name -> (source, node of the body, file)."""
    exported_functions: set[str] = field(default_factory=set)
    aliases: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    options: set[str] = field(default_factory=set)
    folder: str = ""
    line: int = 1
    status: int = 0
    substituted: bool = False
    """Whether a substitution ran since a command began: of a command without a name, its status is the command's."""
    pipe_status: list[int] = field(default_factory=lambda: [0])
    exit_trap: str = ""
    """What `trap ... EXIT` runs at the end."""
    error_trap: str = ""
    """What `trap ... ERR` runs after a command that fails."""
    return_trap: str = ""
    """What `trap ... RETURN` runs at the end of a function or of a file that `source` reads."""
    assumed: str = ""
    """Why the last status is only assumed; empty where it is known."""
    inside_condition: int = 0
    """> 0 where a failing command does not end the shell under `set -e`."""
    loops: int = 0
    leave_after: int = -1
    """A loop is left on an assumed condition only after so many launches: a loop that launches does so once."""
    stdin: InputStream = field(default_factory=lambda: InputStream(None))
    inputs: dict[str, InputStream] = field(default_factory=dict)
    """By the number of the descriptor, what else is open to be read."""
    sinks: dict[int, TextSink | None] = field(default_factory=lambda: {1: None, 2: None})
    on_slurm: bool = False
    getopts_column: int = 0
    wrappers: tuple[Wrapper, ...] = ()
    unset_seen: bool = True
    """Whether variables that are not set are named."""
    inside_default: bool = False
    """Whether a default is read because something is not set: then what only a cluster sets is not set either."""
    exempt: bool = False
    """Whether the last status ends no shell under `set -e`: it came before `&&`, or after `!`."""
    consumed: int = 0
    """Where the last simple command of `consumed_source` ended, which may be beyond its node."""
    consumed_source: object = None

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"

    def subshell(self) -> BashProcess:
        """A copy that changes nothing here."""
        self.reading.step(1 + sum(len(variable.values) for scope in self.scopes for variable in scope.values()) // 4)
        scopes = [
            {name: replace(variable, values=dict(variable.values)) for name, variable in scope.items()}
            for scope in self.scopes
        ]
        return replace(
            self,
            scopes=scopes,
            arguments=list(self.arguments),
            functions=dict(self.functions),
            exported_functions=set(self.exported_functions),
            exit_trap="",
            error_trap=self.error_trap if "errtrace" in self.options else "",
            return_trap=self.return_trap if "functrace" in self.options else "",
            calls=list(self.calls),
            options=set(self.options),
            sinks=dict(self.sinks),
            inputs=dict(self.inputs),
            loops=0,
        )

    def new_shell(self, name: str, file: str, arguments: list[str], *, exported: bool = True) -> BashProcess:
        """What `bash file` begins with: what is exported, alone."""
        functions = {key: self.functions[key] for key in self.exported_functions if exported and key in self.functions}
        return BashProcess(
            self.reading, self.run_text, name, file, arguments, [first_variables(self.exported() if exported else {})],
            folder=self.folder, stdin=self.stdin, sinks=dict(self.sinks), on_slurm=self.on_slurm,
            inputs=dict(self.inputs), wrappers=self.wrappers, functions=functions, exported_functions=set(functions),
        )  # fmt: skip

    def visible_variables(self) -> dict[str, Variable]:
        """Every variable by name, inner scopes first."""
        return {name: variable for scope in self.scopes for name, variable in scope.items()}

    def exported(self) -> dict[str, str]:
        """What a program that is started here finds in its environment."""
        return {
            name: variable.values[0]
            for name, variable in self.visible_variables().items()
            if variable.exported and variable.kind == "scalar" and 0 in variable.values
        }

    def variable(self, name: str) -> Variable | None:
        """The variable of that name, through references (`declare -n`)."""
        target = self.target(name)
        found = self.named(target)
        if found is not None and found.reference:  # of a reference to its own name, bash takes the global variable
            found = self.scopes[0].get(target)
        return None if found is None or found.reference is not None else found

    def named(self, name: str) -> Variable | None:
        """The variable that has that name itself, which may be a reference."""
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def target(self, name: str) -> str:
        """The name that a name stands for: its own, where it is no reference."""
        for _ in range(8):
            found = self.named(name)
            if found is None or not found.reference:
                break
            name = found.reference
        return name

    def get(self, name: str) -> str | None:
        """The scalar value (element 0 of an array); None where it is not set."""
        found = self.variable(name)
        if found is None:
            return None
        return found.values.get("0" if found.kind == "associative" else 0)

    def set(self, name: str, value: str, *, key: int | str | None = None, append: bool = False) -> None:
        """Sets a variable, or one element of an array."""
        self.reading.step(1 + len(value) // 2000)
        value = self.reading.as_one(value)
        variable = self.variable(name)
        if variable is None:
            name = self.target(name)
            found = self.named(name)
            if found is not None and found.reference == "":
                found.reference = value
                return
            variable = self.scopes[0].setdefault(name, Variable({}, exported="allexport" in self.options))
        if variable.readonly:
            self.report_unread(f"{name} is readonly")
            raise ExitScript(1)
        if key is not None and variable.kind == "scalar":
            variable.kind = "indexed"
        at: int | str = key if key is not None else ("0" if variable.kind == "associative" else 0)
        value = variable.values.get(at, "") + value if append else value
        if variable.case:
            value = value.upper() if variable.case == "upper" else value.lower()
        if len(value) > VALUE_CHARACTERS:
            raise StopReading(f"the value of {name} is longer than {VALUE_CHARACTERS:,} characters")
        if at not in variable.values and len(variable.values) >= FIELDS:
            raise StopReading(f"{name} has more than {FIELDS:,} elements")
        variable.values[at] = value

    def declare(self, name: str, *, local: bool) -> Variable:
        """The variable of that name; a new one of the innermost function where `local`."""
        scope = self.scopes[-1] if local else self.scopes[0]
        if local and name not in scope:
            scope[name] = Variable({})
        return (
            scope.setdefault(name, Variable({}))
            if local
            else self.variable(name) or scope.setdefault(self.target(name), Variable({}))
        )

    def unset(self, name: str, *, own: int = -1) -> None:
        """Removes the innermost variable of that name; one of the scope number `own` stays local, without a value."""
        for number, scope in reversed(list(enumerate(self.scopes))):
            if name in scope:
                del scope[name]
                if number and number == own:
                    scope[name] = Variable({})
                return

    def is_open_name(self, name: str) -> bool:
        """Whether the machine or the cluster sets the variable."""
        return name in MACHINE or CLUSTER.fullmatch(name) is not None

    def is_cluster_name(self, name: str) -> bool:
        """Whether only a cluster sets the variable, and this script is not one of Slurm's own."""
        return name not in MACHINE and not (self.on_slurm and name.startswith("SLURM_"))

    def write(self, text: str) -> None:
        """Output of a command."""
        sink = self.sinks.get(1)
        if sink is not None:
            sink.write(text)

    def write_unknown(self) -> None:
        """Output that only running could tell."""
        sink = self.sinks.get(1)
        if sink is not None:
            sink.known = False

    def open_value(self, text: str, placeholder: str, note: str = "", *, single: bool = False) -> str:
        """The character that stands for a value that only running could tell; it is named. `single`: it is one word."""
        reading = self.reading
        placeholder = reading.visible(placeholder)
        if len(placeholder) > 200:
            placeholder = placeholder[:196] + "...}"
        self.report_open(text, placeholder, note)
        character = reading.open_character(placeholder)
        if single:
            reading.single.add(character)
        return character

    def report_open(self, text: str, placeholder: str = "", note: str = "") -> None:
        """Names what only running could tell."""
        text = self.reading.visible(text)
        part = OpenPart(self.place, text[:500], placeholder, self.reading.visible(note))
        if len(self.reading.open) < OPEN_VALUES:
            self.reading.open.setdefault((part.line, part.text, part.placeholder), part)

    def forget_unset(self, before: int) -> None:
        """Drops variables that are not set, named since there were so many open parts: they stand in a message."""
        for key in list(self.reading.open)[before:]:
            if self.reading.open[key].note == NOT_SET:
                del self.reading.open[key]

    def report_unread(self, reason: str, unset: str = "") -> None:
        """Names what could not be read."""
        if len(self.reading.refused) < OPEN_VALUES:
            self.reading.refused.setdefault(UnreadPart(self.place, self.reading.visible(reason), unset))
