"""The tokens that end an answer, by what chat templates write."""

from __future__ import annotations

import re

import pytest
from chats import CHATML, learnt_texts, of_letters

from launcher.data.files import Files
from launcher.spec.data import Message, Row
from launcher.text.encoder import Encoder, Tokens

TURNS = "{% for turn in messages %}<|{{ turn.role }}|>{{ turn.content }}{% endfor %}"
OPEN = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
CALLS = "{% for call in turn.tool_calls %}<tool_call>{{ call.function.arguments | tojson }}</tool_call>{% endfor %}"
HARMONY = (  # an answer may have several parts, and each ends as other turns do
    "{% for turn in messages %}{% if turn.role == 'assistant' %}"
    "{% if turn.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ turn.thinking }}<|end|>{% endif %}"
    "<|start|>assistant"
    "{% if turn.tool_calls %} to={{ turn.tool_calls[0].function.name }}<|message|>"
    "{{ turn.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% else %}<|channel|>final<|message|>{{ turn.content }}{{ '<|return|>' if loop.last else '<|end|>' }}{% endif %}"
    "{% else %}<|start|>{{ turn.role }}<|message|>{{ turn.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


def chat(template: str) -> Encoder:
    """A token for each character and for what stands in angle brackets; the EOS is <eos>."""
    written = re.findall(r"</?\|?[a-z_]+\|?>", template)
    roles = [f"<|{role}|>" for role in ("user", "assistant", "tool", "system") if "<|{{ turn.role }}|>" in template]
    special = list(dict.fromkeys(["<pad>", "<eos>", "<unk>", "<bos>", *written, *roles]))
    return Encoder(of_letters(template, special, "<bos>", "<eos>"), Files())


@pytest.mark.parametrize(("template", "end", "others"), [
    (CHATML, "<|im_end|>", []),  # a base model's
    (TURNS + OPEN, "<|user|>", []),  # no end: where the next turn begins
    (TURNS.replace("{{ turn.content }}", "{{ turn.content }}" + CALLS) + OPEN, "<|user|>", ["<|tool|>"]),  # GLM's kind
    (TURNS + "{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}", "<eos>", ["<|user|>"]),
    (HARMONY, "<|return|>", ["<|call|>"]),  # gpt-oss's kind
    (CHATML.replace("{{ message.content }}", "{{ message.content }}</answer>"), "</answer>", []),
    (CHATML.replace("<|im_end|>\n", "<|end|>\n{{ eos_token if loop.last }}"), "<|end|>", []),  # Phi-3's kind
    ("{% for turn in messages %}{{ turn.role }}: {{ turn.content }}\n{% endfor %}", "<eos>", []),
    ("{% for turn in messages %}{{ turn.role }}: {{ turn.content }}\n{% endfor %}<|user|>", "<|user|>", []),
    ("{{ raise_exception('nothing') }}", "<eos>", []),
    ("{% for turn in messages %}{{ turn.content[0].text }}<|im_end|>{% endfor %}", "<|im_end|>", []),
])  # fmt: skip
def test_found_from_the_template(template: str, end: str, others: list[str]) -> None:
    made = chat(template)
    name = made.tokenizer.convert_ids_to_tokens
    assert name(made.stop_tokens.end) == end
    assert name(list(made.stop_tokens.ids)) == list(dict.fromkeys([end, *others, "<eos>"]))


@pytest.mark.parametrize(("template", "learnt"), [
    (TURNS + OPEN, ["one<|user|>", "two<|user|>"]),
    (CHATML, ["one<|im_end|>\n", "two<|im_end|>\n"]),
    ("{% for turn in messages %}{{ turn.role }}: {{ turn.content }}\n{% endfor %}"
     "{% if add_generation_prompt %}assistant: {% endif %}", ["one\n<eos>", "two\n<eos>"]),
])  # fmt: skip
def test_every_answer_learns_its_end(template: str, learnt: list[str]) -> None:
    """As TRL's template for training GLM, whose makers write no end."""
    made, talk = chat(template), [Message("user", "a"), Message("assistant", "one"), Message("user", "b")]
    whole = made.demonstration(0, Row("t:1", (*talk, Message("assistant", "two"))))
    last = made.demonstration(0, Row("t:1", tuple(talk), "two"))
    assert isinstance(whole, Tokens)
    assert isinstance(last, Tokens)
    assert last.ids == whole.sequences[-1].ids
    assert [text for each in whole.sequences for text in learnt_texts(made, each)] == learnt
    assert learnt_texts(made, last) == learnt[-1:]
