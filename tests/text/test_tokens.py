"""Rows as token ids: what the policy reads, and which tokens are imitated."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chats import CHATML, learnt_texts, of_letters
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from launcher.data.files import Files
from launcher.models.pretrained import Pretrained
from launcher.models.scratch import Scratch
from launcher.spec.data import Message, RefusedRow, Row, Text
from launcher.text.bridge import Bridge
from launcher.text.encoder import Encoder, Pair, Tokens
from launcher.text.measure import count_tokens
from launcher.text.tokenizer import character_tokenizer, load_tokenizer

SPECIAL = ["<pad>", "<unk>", "<s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def chat_tokenizer(template: str | None = CHATML, bos: bool = False) -> PreTrainedTokenizerFast:
    """A token for each character; ends a turn with <|im_end|>; `bos` puts <s> before every text."""
    found = of_letters(template, SPECIAL, "<s>", "<|im_end|>")
    if bos:
        before = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
        found.backend_tokenizer.post_processor = before
    return found


def encoder(tokenizer: PreTrainedTokenizerFast, **limits: Any) -> Encoder:
    return Encoder(tokenizer, Files(**limits))


def row(prompt: Text, response: str | None = None) -> Row:
    return Row("data.jsonl:7", prompt, response)


def good(found: Tokens | RefusedRow) -> Tokens:
    assert isinstance(found, Tokens), found
    return found


def text(encoder: Encoder, ids: list[int]) -> str:
    return "".join(encoder.tokenizer.convert_ids_to_tokens(ids))


def talk(*turns: str) -> tuple[Message, ...]:
    """`role: content` each."""
    return tuple(Message(role, content) for role, _, content in (turn.partition(": ") for turn in turns))


# ---- plain text


def test_plain_text_by_hand() -> None:
    """`characters("ab>")`: <pad> 0, <eos> 1, <unk> 2, a 3, b 4, > 5."""
    plain = encoder(character_tokenizer("ab>"))
    assert plain.prompt(4, row("ab>")) == Tokens(4, [3, 4, 5], [])
    assert plain.demonstration(9, row("ab>", "ba")) == Tokens(9, [3, 4, 5, 4, 3, 1], [0, 0, 0, 1, 1, 1])
    assert plain.prompt(0, row("aXb")) == Tokens(0, [3, 2, 4], [])  # unknown, and still one token
    assert good(plain.demonstration(0, row("a", ""))).mask == [0, 1]  # an empty answer is its end alone


@pytest.mark.parametrize("template", [None, CHATML])
def test_bos_stands_once_and_only_before_the_prompt(template: str | None) -> None:
    plain = Encoder(chat_tokenizer(template, bos=True), Files(chat_template="never"))
    assert text(plain, good(plain.prompt(0, row("hi"))).ids) == "<s>hi"
    found = good(plain.demonstration(0, row("hi", "yo")))
    assert text(plain, found.ids) == "<s>hiyo<|im_end|>"
    assert found.mask == [0, 0, 0, 1, 1, 1]


def test_an_end_that_the_tokenizer_writes_of_its_own_accord_is_not_before_the_answer() -> None:
    tokenizer = character_tokenizer("ab>")
    around = processors.TemplateProcessing(single="<unk> $A <eos>", special_tokens=[("<unk>", 2), ("<eos>", 1)])
    tokenizer.backend_tokenizer.post_processor = around
    plain = encoder(tokenizer)
    assert plain.prompt(0, row("ab")) == Tokens(0, [2, 3, 4], [])
    assert plain.demonstration(0, row("ab", "b")) == Tokens(0, [2, 3, 4, 4, 1], [0, 0, 0, 1, 1])
    assert count_tokens(plain, row("ab"), "prompts") == (3, 0, 1)


def test_bos_of_a_template_is_not_doubled() -> None:
    chat = encoder(chat_tokenizer("{{ bos_token }}" + CHATML, bos=True))
    for found in (
        chat.prompt(0, row("hi")),
        chat.demonstration(0, row("hi", "yo")),
        chat.demonstration(0, row(talk("user: hi", "assistant: yo"))),
    ):
        assert text(chat, good(found).ids).startswith("<s><|im_start|>user")
        assert good(found).ids.count(2) == 1


# ---- with a chat template


@pytest.mark.parametrize("prompt", ["1+1?", talk("user: 1+1?")])
def test_of_a_demonstration_the_answer_and_its_end_are_imitated(prompt: Text) -> None:
    chat = encoder(chat_tokenizer())
    found = good(chat.demonstration(0, row(prompt, "it is 2")))
    assert text(chat, found.ids) == "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\nit is 2<|im_end|>\n"
    assert learnt_texts(chat, found) == ["it is 2<|im_end|>\n"]  # as TRL's templates for training say
    assert found.ids[: found.mask.index(1)] == good(chat.prompt(0, row(prompt))).ids  # what the policy will be asked
    assert found == good(chat.demonstration(0, row(talk("user: 1+1?", "assistant: it is 2"))))


def test_every_assistant_turn_of_a_conversation_is_imitated() -> None:
    chat = encoder(chat_tokenizer())
    turns = talk("system: s", "user: a\nassistant", "assistant: one", "user: b", "tool: t", "assistant: two  ")
    found = good(chat.demonstration(0, row(turns)))
    assert learnt_texts(chat, found) == ["one<|im_end|>\n", "two  <|im_end|>\n"]
    whole = chat.tokenizer.apply_chat_template(
        [{"role": turn.role, "content": turn.content} for turn in turns], tokenize=False
    )
    assert text(chat, found.ids) == whole  # nothing is lost, and nothing added


REWRITES = CHATML.replace("{{ message.content }}", "{{ message.content if loop.last else message.content | upper }}")


def test_where_a_template_rewrites_earlier_turns_each_answer_is_learned_in_what_inference_shows() -> None:
    chat = encoder(chat_tokenizer(REWRITES))
    turns = talk("user: a", "assistant: one", "user: b", "assistant: two")
    found = good(chat.demonstration(0, row(turns)))
    prompts = [good(chat.prompt(0, row(turns[:place]))).ids for place in (1, 3)]
    assert [each.ids[: each.mask.index(1)] for each in found.sequences] == prompts
    assert [learnt_texts(chat, each) for each in found.sequences] == [["one<|im_end|>\n"], ["two<|im_end|>\n"]]
    last = encoder(chat_tokenizer(REWRITES), loss_on="last")
    assert good(last.demonstration(0, row(turns))) == found.others[0]


THINKS = CHATML.replace("<|im_start|>assistant\n{% endif", "<|im_start|>assistant\n<think>\n{% endif")
DROPS = THINKS.replace("{{ message.content }}", "{{ message.content.split('</think>')[-1] }}")
EMPTY = THINKS.replace(
    "{{ message.content }}", "{{ '<think></think>' if message.role == 'assistant' }}{{ message.content }}"
)

FIELD = THINKS.replace(
    "{{ message.content }}",
    "{% if message.role == 'assistant' %}<think>\n"
    "{{ (message.reasoning_content or '') + '\\n</think>\\n\\n' }}{% endif %}"
    "{{ message.content }}",
)


CLOSES = CHATML.partition("{% if add")[0] + (  # as Gemma's, which says that nothing is thought in no finished turn
    "{% if add_generation_prompt %}<|im_start|>assistant\n<thought></thought>{% endif %}"
)


@pytest.mark.parametrize(("template", "answer", "extra", "learned"), [
    (THINKS, "b", {}, "\n</think>\n\nb"),
    (THINKS, "b", {"reasoning_content": "So."}, "So.\n</think>\n\nb"),
    (THINKS, "<think>\nSo.\n</think>\n\nb", {}, "So.\n</think>\n\nb"),
    (THINKS, "<think>So.</think>b", {}, "So.</think>b"),
    (THINKS, "So.\n</think>\n\nb", {}, "So.\n</think>\n\nb"),  # as it was sampled
    (DROPS, "<think>\nSo.\n</think>\n\nb", {}, "So.\n</think>\n\nb"),  # as DeepSeek's
    (DROPS, "b", {"thinking": "So."}, "So.\n</think>\n\nb"),
    (EMPTY, "b", {}, "</think>b"),  # as the template writes that nothing was thought
    (FIELD, "b", {}, "\n</think>\n\nb"),
    (FIELD, "<think>So.</think>b", {}, "So.\n</think>\n\nb"),  # the template reads the field alone
    (FIELD, "b", {"reasoning_content": "So."}, "So.\n</think>\n\nb"),
    (CLOSES, "b", {}, "b"),
    (CLOSES, "e", {}, "e"),
    (CLOSES, "<think>So.</think>b", {}, "<think>So.</think>b"),  # other tags than the prompt's are text
])  # fmt: skip
def test_a_reasoning_that_the_prompt_opens_is_closed(
    template: str, answer: str, extra: dict[str, Any], learned: str
) -> None:
    chat, asked = encoder(chat_tokenizer(template)), Row("f:7", "a", answer, rejected="c", response_extra=extra)
    for made in (asked, row((Message("user", "a"), Message("assistant", answer, extra)))):
        found = good(chat.demonstration(0, made))
        assert found.ids[: found.mask.index(1)] == good(chat.prompt(0, row("a"))).ids
        assert learnt_texts(chat, found) == [f"{learned}<|im_end|>\n"]
    pair = chat.pair(0, asked)
    assert isinstance(pair, Pair)
    assert learnt_texts(chat, pair.chosen) == [f"{learned}<|im_end|>\n"]
    nothing = {EMPTY: "</think>", CLOSES: ""}.get(template, "\n</think>\n\n")
    assert learnt_texts(chat, pair.rejected) == [f"{nothing}c<|im_end|>\n"]


CHANNELS = (
    "{% set said = messages[-1].role == 'assistant' and not messages[-1].tool_calls %}{% for message in messages %}"
    "<|im_start|>{{ message.role }}{% if message.role == 'assistant' %}"
    "{% if message.thinking and (loop.last or not said) %}/think:{{ message.thinking }}<|im_end|>"
    "<|im_start|>assistant{% endif %}"
    "{% if message.tool_calls %}/call{% else %}/final{% endif %}{% endif %}:{{ message.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)


@pytest.mark.parametrize(("extra", "learned"), [
    ({}, "/final:It is 4.<|im_end|>"),
    ({"thinking": "So."}, "/think:So.<|im_end|><|im_start|>assistant/final:It is 4.<|im_end|>"),
])  # fmt: skip
def test_after_a_tool_an_answer_is_learned_with_its_channel(extra: dict[str, Any], learned: str) -> None:
    """As gpt-oss's, which leaves out what was thought before a call once a final answer follows."""
    chat = Encoder(chat_tokenizer(CHANNELS), Files(loss_on="last"))
    call = {"type": "function", "id": "1", "function": {"name": "add", "arguments": {}}}
    turns = (Message("user", "2+2?"), Message("assistant", "add", {"thinking": "Add.", "tool_calls": [call]}),
             Message("tool", "4"), Message("assistant", "It is 4.", extra))  # fmt: skip
    found = good(chat.demonstration(0, row(turns)))
    assert learnt_texts(chat, found) == [learned]
    assert text(chat, found.ids[: found.mask.index(1)]) == chat.opening(turns[:3]) and "Add." in chat.opening(turns[:3])


def test_an_end_within_an_answer_does_not_end_it() -> None:
    """As in rows about chat templates; this template writes no end of its own."""
    chat = encoder(chat_tokenizer(CHATML.replace("<|im_end|>\n", "")))
    assert chat.stop_tokens.end == chat.tokenizer.convert_tokens_to_ids("<|im_start|>")
    found = good(chat.demonstration(0, row("a", "write <|im_start|> or so")))
    assert learnt_texts(chat, found) == ["write <|im_start|> or so<|im_start|>"]
    found = good(chat.demonstration(0, row(talk("user: a", "assistant: <|im_start|>?", "user: b", "assistant: no"))))
    assert learnt_texts(chat, found) == ["<|im_start|>?<|im_start|>", "no<|im_start|>"]


SWITCH = CHATML.replace(
    "assistant\n{% endif", "assistant\n{{ '<think>\n\n</think>\n\n' if enable_thinking is false }}{% endif"
).replace(
    "{{ message.content }}",
    "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n"
    "{% elif message.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ message.content }}",
)


def test_arguments_of_the_template_hold_wherever_it_writes() -> None:
    made = row((Message("user", "a"), Message("assistant", "b", {"reasoning_content": "So."})))
    thinks = encoder(chat_tokenizer(SWITCH))
    plain = encoder(chat_tokenizer(SWITCH), template_args={"enable_thinking": False})
    assert text(plain, good(plain.prompt(0, row("a"))).ids).endswith("<think>\n\n</think>\n\n")
    assert learnt_texts(thinks, good(thinks.demonstration(0, made))) == ["<think>\nSo.\n</think>\n\nb<|im_end|>\n"]
    assert learnt_texts(plain, good(plain.demonstration(0, made))) == ["b<|im_end|>\n"]  # nothing is thought
    own = replace(made, template_args={"enable_thinking": True})
    assert good(plain.demonstration(0, own)) == good(thinks.demonstration(0, made))


CALLING = CHATML.replace(
    "{{ message.content }}",
    "{{ message.content }}{% for call in message.tool_calls %}<call>{{ call.function.name }}"
    "{{ ARGUMENTS }}</call>{% endfor %}",
).replace("{% for message", "{% for tool in tools or [] %}[{{ tool.name }}]{% endfor %}{% for message", 1)
AS_OBJECT = CALLING.replace("ARGUMENTS", "call.function.arguments | tojson")
AS_TEXT = CALLING.replace("ARGUMENTS", "'' + call.function.arguments")


@pytest.mark.parametrize(("template", "arguments", "content"), [
    (AS_OBJECT, {"a": 1}, ""), (AS_OBJECT, '{"a": 1}', None), (AS_TEXT, {"a": 1}, None), (AS_TEXT, '{"a": 1}', ""),
])  # fmt: skip
def test_tools_and_their_calls(template: str, arguments: Any, content: Any) -> None:
    """Arguments are objects or JSON, whichever the template takes."""
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    turns = (
        Message("user", "1+1?"), Message("assistant", "", {"content": content, "tool_calls": [call]}),
        Message("tool", "2", {"name": "add"}), Message("assistant", "It is 2."),
    )  # fmt: skip
    chat = encoder(chat_tokenizer(template))
    found = good(chat.demonstration(0, replace(row(turns), template_args={"tools": [{"name": "add"}]})))
    assert text(chat, found.ids).startswith("[add]<|im_start|>user")
    assert learnt_texts(chat, found) == ['<call>add{"a": 1}</call><|im_end|>\n', "It is 2.<|im_end|>\n"]


PARTS = CHATML.replace("{{ message.content }}", "{% for part in message.content %}{{ part.text }}{% endfor %}")


def test_templates_that_read_contents_in_parts_get_parts() -> None:
    chat = encoder(chat_tokenizer(PARTS))
    assert text(chat, good(chat.demonstration(0, row("a", "b"))).ids) == text(
        chat, good(encoder(chat_tokenizer()).demonstration(0, row("a", "b"))).ids
    )


def test_calls_that_a_template_does_not_write_are_refused_with_a_remedy() -> None:
    turns = (*talk("user: a"), Message("assistant", "", {"tool_calls": [{"function": {"name": "add"}}]}))
    found = reason(encoder(chat_tokenizer()).demonstration(0, row(turns)))
    assert found.endswith("; use a model whose template writes tool calls, or rows without them")


# ---- refused, with words


def reason(found: Tokens | RefusedRow) -> str:
    assert isinstance(found, RefusedRow), found
    assert found.where == "data.jsonl:7"
    return found.reason


TALK = "is a conversation, and the tokenizer has no chat template; use"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda plain: plain.prompt(0, row("")), "prompt has no tokens"),
        (lambda plain: plain.demonstration(0, row("", "a")), "prompt has no tokens"),
        (lambda plain: plain.prompt(0, row("aaaa")), "prompt has 4 tokens; data.max_prompt_length is 3"),
        (lambda plain: plain.demonstration(0, row("aaaa", "a")), "prompt has 4 tokens; data.max_prompt_length is 3"),
        (lambda plain: plain.demonstration(0, row("a", "aa")), "answer has 3 tokens; data.max_response_length is 2"),
        (lambda plain: plain.prompt(0, row(talk("system: b", "user: a"))), f"{TALK} a text prompt"),
        (lambda plain: plain.demonstration(0, row(talk("system: b", "user: a"), "b")), f"{TALK} a text prompt"),
        (lambda plain: plain.demonstration(0, row(talk("system: b", "user: a", "assistant: b"))),
         f"{TALK} a text prompt"),
        (lambda plain: plain.demonstration(0, row(talk("user: a", "assistant: b", "user: a", "assistant: b"))),
         f"{TALK} prompt and response"),
    ],
)  # fmt: skip
def test_what_plain_text_cannot_hold(make: Callable[[Encoder], Tokens | RefusedRow], words: str) -> None:
    assert reason(make(encoder(character_tokenizer("ab>"), max_prompt_length=3, max_response_length=2))) == words


def test_a_single_question_needs_no_template() -> None:
    """Prepared rows are messages, and a model without a template reads them as the text they came from."""
    plain = encoder(character_tokenizer("ab>"))
    assert plain.prompt(0, row(talk("user: a"))) == plain.prompt(0, row("a"))
    assert plain.demonstration(0, row(talk("user: a"), "b")) == plain.demonstration(0, row("a", "b"))
    assert plain.demonstration(0, row(talk("user: a", "assistant: b"))) == plain.demonstration(0, row("a", "b"))


@pytest.mark.parametrize(("truncation", "prompt"), [("left", [4, 5, 3]), ("right", [3, 4, 4])])  # b>a, abb
def test_what_is_too_long_is_cut(truncation: Any, prompt: list[int]) -> None:
    cut = encoder(character_tokenizer("ab>"), max_prompt_length=3, max_response_length=3, truncation=truncation)
    assert good(cut.prompt(0, row("abb>a"))).ids == prompt
    shown = good(cut.demonstration(0, row("abb>a", "bbbbb")))
    assert (shown.ids, shown.mask) == ([*prompt, 4, 4, 4], [0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize(("truncation", "wanted"), [("filter", True), ("error", False)])
def test_what_is_too_long_is_left_out_on_demand_and_the_longest_is_taken(truncation: Any, wanted: bool) -> None:
    plain = encoder(character_tokenizer("ab>"), max_prompt_length=3, max_response_length=2, truncation=truncation)
    refused = plain.prompt(0, row("abb>"))
    assert isinstance(refused, RefusedRow) and refused.wanted == wanted
    assert len(good(plain.prompt(0, row("aaa"))).ids) == 3
    assert len(good(plain.demonstration(0, row("aaa", "b"))).ids) == 5  # with its end, the answer has 2


# <|im_start|>user\na<|im_end|>\n is 9 tokens, <|im_start|>assistant\n 11; an answer with its end is 2, then \n
@pytest.mark.parametrize(("prompt", "answer", "found"), [
    (20, 26, 46), (19, 26, "prompt has 20 tokens; data.max_prompt_length is 19"),
    (20, 25, "answer has 26 tokens; data.max_response_length is 25"),
])  # fmt: skip
def test_the_limits_of_a_conversation_are_before_and_from_its_first_answer_on(
    prompt: int, answer: int, found: int | str
) -> None:
    chat = encoder(chat_tokenizer(), max_prompt_length=prompt, max_response_length=answer)
    made = chat.demonstration(0, row(talk("user: a", "assistant: b", "user: c", "assistant: d")))
    assert (len(made.ids) if isinstance(made, Tokens) else reason(made)) == found


def test_a_conversation_without_an_answer_is_refused_and_a_refused_row_is_kept_whole() -> None:
    assert reason(encoder(chat_tokenizer()).demonstration(0, row(talk("user: a")))) == "answer has no tokens"
    found = encoder(character_tokenizer("ab>")).prompt(0, row(""))
    assert isinstance(found, RefusedRow) and found.raw == repr(row(""))


@pytest.mark.parametrize(("prompt", "answer", "kept"), [(7, 2, 10), (3, 6, 10), (3, 7, 0), (12, 1, 0)])
def test_one_length_holds_for_prompt_and_answer_together(prompt: int, answer: int, kept: int) -> None:
    """An answer has an end of one token, too."""
    asked, limits = row("a" * prompt, "b" * answer), {"max_prompt_length": 10, "max_response_length": 10}
    found = encoder(character_tokenizer("ab"), max_length=10, **limits).demonstration(0, asked)
    if kept:
        assert len(good(found).ids) == kept
    else:
        assert isinstance(found, RefusedRow) and "data.max_length is 10" in found.reason
    cut = good(encoder(character_tokenizer("ab"), max_length=10, truncation="right", **limits).demonstration(0, asked))
    assert len(cut.ids) == 10 and 1 in cut.mask


@pytest.mark.parametrize(("chosen", "rejected", "limit"), [("abcdefgh", "abcdxxxx", 4), ("\u65e5", "\u672c", 9)])
def test_pairs_of_equal_tokens_are_refused(chosen: str, rejected: str, limit: int) -> None:
    pair, tokenizer = Row("f:7", "q", chosen, rejected=rejected), character_tokenizer("abcdefghxq")
    run = encoder(tokenizer, max_response_length=limit, truncation="right")
    refused, counted = run.pair(0, pair), count_tokens(encoder(tokenizer), pair, "pairs", run)
    assert isinstance(refused, RefusedRow) and counted == refused.reason
    assert "equal tokens" in refused.reason


def test_the_longer_answer_of_a_pair_counts() -> None:
    made = encoder(character_tokenizer("ab C1"))
    pair = Row("f:1", "ab", "a", rejected="abC")
    both = made.pair(0, pair)
    assert isinstance(both, Pair)
    assert count_tokens(made, pair, "pairs") == (2, len(both.rejected.ids) - 2, 1)
    assert count_tokens(made, Row("f:1", "ab", "a"), "answers") == (2, 2, 1)
    refused = count_tokens(made, Row("f:1", (Message("system", "a"), Message("user", "b")), "a"), "answers")
    assert refused == "is a conversation, and the tokenizer has no chat template; use a text prompt"


# ---- tokenizers


WORDS = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{N}{1,3}|\s+|[^\s\p{N}]+"), "isolated"),
                                 pre_tokenizers.ByteLevel(False, use_regex=False)])  # fmt: skip
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)


@pytest.mark.parametrize(("family", "name", "split"), [
    ("llama", "GPT2Tokenizer", WORDS), ("qwen2", "PreTrainedTokenizerFast", BYTES), ("gpt2", None, BYTES),
    ("qwen2", "LlamaTokenizerFast", WORDS), ("gemma2", "GemmaTokenizer", BYTES), ("cohere", "CohereTokenizer", WORDS),
])  # fmt: skip
def test_tokens_are_those_of_tokenizer_json(tmp_path: Path, family: str, name: str | None, split: Any) -> None:
    """Whatever class the folder names: transformers' own would build another tokenizer of most of these."""
    made, text = Tokenizer(models.BPE()), "In 1907, 12345 people came.\n\n Yes"
    made.pre_tokenizer, made.decoder = split, decoders.ByteLevel()
    made.train_from_iterator([text] * 9, trainers.BpeTrainer(vocab_size=300, show_progress=False,
                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
    made.add_special_tokens(["<|end|>"])
    made.save(str(tmp_path / "tokenizer.json"))
    end = made.token_to_id("<|end|>")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name} if name else {}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, "eos_token_id": [end, 1]}))
    found = load_tokenizer(Pretrained(path=str(tmp_path)))
    assert found(text).input_ids == made.encode(text).ids
    assert (found.eos_token, len(found)) == ("<|end|>", made.get_vocab_size())  # which only config.json names


def test_a_scratch_model_with_a_chat_template_calls_tools_and_has_words_as_tokens() -> None:
    """Each turn is opened by one token and ended by <eos>; the longest word that fits is one token."""
    model = Scratch(chat=True, words=("budget", "budget plan", '<tool_call>{"name": "look", "arguments": {"at": "'))
    tokenizer = load_tokenizer(model)
    assert model.shape.vocab_size == len(tokenizer)
    bridge = Bridge(Encoder(tokenizer, Files()))
    call = {"type": "function", "id": "c", "function": {"name": "look", "arguments": {"at": "budget plan"}}}
    turns = (Message("user", "where?"), Message("assistant", "", {"tool_calls": [call]}), Message("tool", "here\n{7}"))
    found = good(bridge.encoder.demonstration(0, replace(row(""), prompt=(*turns, Message("assistant", "7")))))
    learned = tokenizer.decode([number for number, seen in zip(found.ids, found.mask, strict=True) if seen])
    assert learned == '<tool_call>{"name": "look", "arguments": {"at": "budget plan"}}</tool_call><eos>7<eos>'
    assert "budget plan" in [tokenizer.decode([number]) for number in found.ids]
    (read,) = bridge.read(learned.partition("<eos>")[0]).calls
    assert (read.name, read.arguments) == ("look", {"at": "budget plan"})
    with pytest.raises(ValueError, match="stands there twice"):
        Scratch(words=("ab", "ab"))
