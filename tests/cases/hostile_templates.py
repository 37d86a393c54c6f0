"""Chat templates of somebody hostile: how each is saved in a model's folder, and what `rlrun plan` must say of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from launch_model import TEMPLATE

NAMED = "chat.template"
"""What a refusal must name."""


@dataclass(frozen=True)
class Case:
    name: str
    kind: str
    spoil: Callable[[Path], object]
    """Makes a healthy model's folder hostile."""
    expected: str
    """Pattern of a FAIL line of a plan that must refuse; `OK` where it must not, `OK or PATTERN` where both will do,
    `WARN PATTERN` where it goes on and warns."""
    algorithm: str = "sft"


def _each(body: str) -> str:
    """A template that is healthy but for what it does with each turn."""
    return TEMPLATE.replace("{% endfor %}", body + "{% endfor %}", 1)


def _doubled(value: str, more: str, times: str = "range(64)") -> str:
    loop = f"{{% for i in {times} %}}{{% set ns.x = {more} %}}{{% endfor %}}"
    return f"{{% set ns = namespace(x={value}) %}}{loop}{{{{ ns.x }}}}"


LONG = "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}BODY" + "{% endfor %}" * 3
ENDLESS = LONG.replace("BODY", "")
BUSY = "{% for i in range(99999) %}{% set x = i * i %}{% endfor %}"
"""Some hundredths of a second."""
ENTERED = "cycler.__init__.__globals__.os.system('touch escaped')"

TEXTS = {
    "loop to 10^9": "{% for i in range(10**9) %}{% endfor %}",
    "loops in loops": ENDLESS,
    "text times 10^10": "{{ 'a' * 10**10 }}",
    "macro calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "3,000 blocks deep": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "50,000 brackets": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "number of 100,000 digits": "{{ " + "9" * 100_000 + " }}",
    "number in base 36": "{{ ('z' * 10**7) | int(base=36) }}",
    "format of 10^10 places": "{{ '{:>10000000000}'.format(1) }}",
    "urlize": "{{ ('http://a.' * 10**7) | urlize }}",
    "join": "{{ (range(99999)|list * 1000) | join('x' * 1000) }}",
    "text doubles": _doubled("'a'", "ns.x ~ ns.x"),
    "list in a list": _doubled("[]", "[ns.x]", "range(99999)"),
    "lipsum": "{{ lipsum(n=10**5, min=10**5, max=10**6) }}",
    "infinity as a whole number": "{{ 'inf' | float | int }}{{ (1e999) | int }}",
    "20 MB": "a" * (20 * 2**20),
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ " + ENTERED + " }}",
    "format of internals": "{{ '{0.__class__.__init__.__globals__}'.format(cycler) }}",
    "globals of the error": "{{ raise_exception.__globals__['__builtins__']['open']('escaped', 'w') }}",
    "include": "{% include '/etc/passwd' %}",
    "its own error of 100 MB": "{{ raise_exception('a' * 10**8) }}",
    "its own error clears the screen": "{{ raise_exception('\x1b[2J\x1b]0;mine\x07 gone') }}",
    "no end of a block": "{% for turn in messages %}{{ turn.content }}",
    "only in an answer": _each("{% if turn.role == 'assistant' %}" + ENDLESS + "{% endif %}"),
    "only in a system turn": _each("{% if turn.role == 'system' %}" + ENDLESS + "{% endif %}"),
    "only in the last row": _each("{% if 'last' in turn.content %}" + ENDLESS + "{% endif %}"),
    "a little in each turn": _each(BUSY * 10),
}


def _saved(text: str | bytes) -> Callable[[Path], object]:
    data = text.encode() if isinstance(text, str) else text
    return lambda folder: (folder / "chat_template.jinja").write_bytes(data)


def _in_config(value: object) -> Callable[[Path], object]:
    def spoil(folder: Path) -> None:
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": value}))

    return spoil


def _additional(folder: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    os.mkfifo(folder / "additional_chat_templates/tool_use.jinja")


KIND = "chat template"
CASES = [
    *(Case(name, KIND, _saved(text), NAMED) for name, text in TEXTS.items()),
    Case("only of an open answer", KIND, _saved(TEMPLATE.replace("<|assistant|>", ENDLESS)), NAMED, "grpo"),
    Case("not UTF-8", KIND, _saved(b"\xff\xfe" + TEMPLATE.encode("utf-16-le")), NAMED),
    Case("comment of 30 MB", KIND, _saved("{#" + "a" * (30 * 2**20) + "#}" + TEMPLATE), f"OK or {NAMED}"),
    Case("infinity", KIND, _saved(_each("{% set x = 1e999 %}")), NAMED),  # jinja writes inf, which has no value
    Case("number in place of it", KIND, _in_config(5), NAMED),
    Case("list in place of it", KIND, _in_config([[[]]]), NAMED),
    Case("names without templates", KIND, _in_config([{"name": "default"}, {"template": 1}]), NAMED),
    Case("pipe among additional ones", KIND, _additional, "OK or additional_chat_templates|tool_use"),
]
