"""Chat templates in the formats that model families publish, each with a small tokenizer that has its special tokens.

They are written for these tests: what a turn, a call and a tool's result look like is the family's, the words around
tools are not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from launcher.text.encoder import Encoder, Tokens

_OPEN = "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
_TOOLS = (
    "{%- if tools %}{{ '<|im_start|>system\\n' + (messages[0].content + '\\n\\n' if messages[0].role == 'system' else '') }}"
    "Tools:{% for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}{{ '<|im_end|>\\n' }}"
    "{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}"
)
_RESULT = (
    "{%- elif turn.role == 'tool' %}"
    "{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' + turn.content + '\n</tool_response>' }}"
    "{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
)
_JSON_CALL = (
    '{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}"
)
_TAGGED_CALL = (
    "{{ '<tool_call>\n<function=' + call.function.name + '>\n' }}"
    "{% for key, value in call.function.arguments.items() %}{{ '<parameter=' + key + '>\n' }}"
    "{{ value if value is string else value | tojson }}{{ '\n</parameter>\n' }}{% endfor %}"
    "{{ '</function>\n</tool_call>' }}"
)
_PLAIN = "{%- if turn.role in ('user', 'system') and not (loop.first and turn.role == 'system') %}" \
    "{{ '<|im_start|>' + turn.role + '\n' + turn.content + '<|im_end|>\n' }}"  # fmt: skip
QWEN25 = (
    _TOOLS + "{%- for turn in messages %}" + _PLAIN + "{%- elif turn.role == 'assistant' %}{{ '<|im_start|>assistant' }}"
    "{% if turn.content or not turn.tool_calls %}{{ '\n' + turn.content }}{% endif %}"
    "{% for call in turn.tool_calls or [] %}{{ '\n' }}" + _JSON_CALL + "{% endfor %}{{ '<|im_end|>\n' }}"
    + _RESULT + "{%- endif %}{%- endfor %}" + _OPEN
)  # fmt: skip
_THINKING = (
    "{%- set asked = namespace(at=-1) %}"
    "{%- for turn in messages %}{% if turn.role == 'user' %}{% set asked.at = loop.index0 %}{% endif %}{% endfor %}"
)
_THOUGHT = (  # of turns after the last question only
    "{%- set thought = (turn.reasoning_content or '') %}{{ '<|im_start|>assistant\n' }}"
    "{%- if loop.index0 > asked.at and (loop.last or thought) %}"
    "{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}{% endif %}{{ turn.content.lstrip('\n') }}"
)
QWEN3 = (
    _TOOLS + _THINKING + "{%- for turn in messages %}" + _PLAIN + "{%- elif turn.role == 'assistant' %}" + _THOUGHT
    + "{% for call in turn.tool_calls or [] %}{% if not loop.first or turn.content %}{{ '\n' }}{% endif %}" + _JSON_CALL
    + "{% endfor %}{{ '<|im_end|>\n' }}" + _RESULT + "{%- endif %}{%- endfor %}" + _OPEN
)  # fmt: skip
QWEN35 = (
    _TOOLS + _THINKING + "{%- for turn in messages %}" + _PLAIN + "{%- elif turn.role == 'assistant' %}" + _THOUGHT
    + "{% for call in turn.tool_calls or [] %}{% if loop.first and turn.content %}{{ '\n\n' }}"
    "{% elif not loop.first %}{{ '\n' }}{% endif %}" + _TAGGED_CALL + "{% endfor %}{{ '<|im_end|>\n' }}"
    + _RESULT + "{%- endif %}{%- endfor %}"
    + "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)  # fmt: skip
HERMES = (
    _TOOLS + "{%- for turn in messages %}{%- if turn.role == 'tool' %}"
    "{{ '<|im_start|>tool\n<tool_response>\n' + turn.content + '\n</tool_response><|im_end|>\n' }}"
    "{%- elif turn.tool_calls %}{{ '<|im_start|>assistant' }}{% for call in turn.tool_calls %}{{ '\n' }}" + _JSON_CALL
    + "{% endfor %}{{ '<|im_end|>\n' }}"
    "{%- elif turn.role != 'system' %}{{ '<|im_start|>' + turn.role + '\n' + turn.content + '<|im_end|>\n' }}"
    "{%- endif %}{%- endfor %}" + _OPEN
)  # fmt: skip
LLAMA3 = (
    "{{ bos_token }}{% macro head(role) %}{{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}{% endmacro %}"
    "{%- if tools %}{{ head('system') }}Tools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}<|eot_id|>{% endif %}"
    "{%- for turn in messages %}"
    "{%- if turn.tool_calls %}{% if turn.tool_calls | length != 1 %}{{ raise_exception('one call at once') }}{% endif %}"
    "{%- set call = turn.tool_calls[0].function %}"
    "{{ head('assistant') + '{\"name\": \"' + call.name + '\", \"parameters\": ' }}{{ call.arguments | tojson }}"
    "{{ '}<|eot_id|>' }}"
    "{%- elif turn.role == 'tool' %}{{ head('ipython') }}{{ turn.content | tojson }}<|eot_id|>"
    "{%- else %}{{ head(turn.role) + (turn.content | trim) + '<|eot_id|>' }}{%- endif %}"
    "{%- endfor %}{% if add_generation_prompt %}{{ head('assistant') }}{% endif %}"
)
HARMONY = (
    "<|start|>system<|message|>Channels: analysis, commentary, final.<|end|>"
    "{%- if tools %}<|start|>developer<|message|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|end|>{% endif %}"
    "{%- set last = namespace(name='') %}"
    "{%- for turn in messages %}"
    "{%- if turn.role == 'tool' %}{% if not last.name %}{{ raise_exception('no call before') }}{% endif %}"
    "<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>{{ turn.content | tojson }}<|end|>"
    "{%- elif turn.role != 'assistant' %}<|start|>{{ turn.role }}<|message|>{{ turn.content }}<|end|>"
    "{%- elif turn.tool_calls %}{% set last.name = turn.tool_calls[0].function.name %}"
    "{%- if turn.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ turn.thinking }}<|end|>{% endif %}"
    "<|start|>assistant to=functions.{{ last.name }}<|channel|>commentary json<|message|>"
    "{{ turn.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{%- else %}<|start|>assistant<|channel|>final<|message|>{{ turn.content }}"
    "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}{% set last.name = '' %}{%- endif %}"
    "{%- endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
_IM = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_THINK = ("<think>", "</think>")


@dataclass(frozen=True)
class Family:
    """A family of models: its template, its tokens, and a turn that calls `look` as it writes it."""

    template: str
    special: tuple[str, ...]
    """Left out of text that is decoded without special tokens."""
    added: tuple[str, ...]
    """Of one id, but plain text all the same."""
    eos: str
    form: str
    call: str
    """With `{}` for the arguments as JSON, `[]` for its words."""
    ends: str
    """What ends a turn with a call."""
    answer: str = "{}"


FAMILIES = {
    "qwen2.5": Family(QWEN25, _IM, _TAGS, "<|im_end|>", "hermes",
                      '<tool_call>\n{"name": "look", "arguments": {"at": {}}}\n</tool_call>', "<|im_end|>"),
    "qwen3": Family(QWEN3, _IM, (*_TAGS, *_THINK), "<|im_end|>", "hermes",
                    '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "look", "arguments": {"at": {}}}\n</tool_call>',
                    "<|im_end|>", "<think>\nhm\n</think>\n\n{}"),
    "qwen3.5": Family(QWEN35, _IM, (*_TAGS, *_THINK), "<|im_end|>", "tagged",
                      "hm\n</think>\n\n<tool_call>\n<function=look>\n<parameter=at>\n[]\n</parameter>\n</function>\n"
                      "</tool_call>", "<|im_end|>", "hm\n</think>\n\n{}"),
    "hermes": Family(HERMES, _IM, _TAGS, "<|im_end|>", "hermes",
                     '<tool_call>\n{"name": "look", "arguments": {"at": {}}}\n</tool_call>', "<|im_end|>"),
    "llama3": Family(LLAMA3, ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
                              "<|python_tag|>"), (), "<|eot_id|>", "llama",
                     '{"name": "look", "parameters": {"at": {}}}', "<|eot_id|>"),
    "gpt-oss": Family(HARMONY, ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>",
                                "<|constrain|>"), (), "<|return|>", "harmony",
                      "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.look<|channel|>commentary "
                      'json<|message|>{"at": {}}', "<|call|>", "<|channel|>final<|message|>{}"),
}  # fmt: skip
MERGES = [("t", "h"), ("th", "e"), ("i", "n"), ("Ġ", "a"), ('"', ":"), ("{", '"'), ("}", "}"), ("o", "o"), ("l", "oo"),
          ("loo", "k"), ("a", "t"), ("Ċ", "Ċ")]  # fmt: skip


def tokenizer_of(family: Family) -> PreTrainedTokenizerFast:
    """A token for each byte, some longer ones, and those of the family: a text has many spellings in ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    numbers = {token: number for number, token in enumerate([*alphabet, *(a + b for a, b in MERGES)])}
    made = Tokenizer(models.BPE(numbers, MERGES))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, normalized=False) for token in family.special])
    made.add_tokens([AddedToken(token, normalized=False, special=False) for token in family.added])
    found = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=family.eos, bos_token=family.special[0], clean_up_tokenization_spaces=False
    )
    found.chat_template = family.template
    return found


CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def of_letters(template: str | None, special: Sequence[str], bos: str, eos: str) -> PreTrainedTokenizerFast:
    """A token for each character, and for each that is `special`."""
    letters = [*map(chr, range(32, 127)), "\n"]
    made = Tokenizer(models.WordLevel({token: number for number, token in enumerate([*special, *letters])}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?m)."), "isolated")
    made.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    found = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", bos_token=bos, eos_token=eos
    )
    found.chat_template = template
    return found


def learnt_texts(encoder: Encoder, found: Tokens) -> list[str]:
    """The pieces of text that are imitated."""
    pairs = zip(encoder.tokenizer.convert_ids_to_tokens(found.ids), found.mask, strict=True)
    return ["".join(token for token, _ in run) for marked, run in groupby(pairs, itemgetter(1)) if marked]


def scattered(tokenizer: PreTrainedTokenizerFast, text: str, draw: random.Random) -> list[int]:
    """Ids of a text that the tokenizer itself may never give: it is cut anywhere but within added tokens."""
    pieces, added = [text], sorted((t.content for t in tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
    for token in added:
        pieces = [part for piece in pieces for part in (_split(piece, token) if piece not in added else [piece])]
    ids = list[int]()
    for piece in pieces:
        while piece:
            size = len(piece) if piece in added else draw.randint(1, 6)
            ids += tokenizer(piece[:size], add_special_tokens=False).input_ids
            piece = piece[size:]
    return ids


def _split(piece: str, token: str) -> list[str]:
    parts = piece.split(token)
    return [each for part in parts for each in (part, token)][:-1]
