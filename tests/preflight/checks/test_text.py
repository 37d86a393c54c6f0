"""What a plan says of a model's tokenizer and chat template, and of what they make of rows."""

from __future__ import annotations

import itertools
import json
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import launch_model
import pytest
from launch_site import rows
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from launcher.config.resolve import resolve
from launcher.data.files import Files
from launcher.data.rows import RawRow
from launcher.models.pretrained import Pretrained
from launcher.preflight.checks import text
from launcher.preflight.checks.context import Context, SplitRows
from launcher.spec.data import Message, Row
from launcher.text import measure, process
from launcher.text.encoder import Encoder
from launcher.text.tokenizer import character_tokenizer, load_tokenizer

SIZES = ["data.max_prompt_length=64", "data.max_response_length=32", "data.train_batch_size=4"]


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text process is forked, as in a program without threads, so that it has what a test has changed."""
    monkeypatch.setattr("launcher.text.process.threading.active_count", lambda: 1)


def turns(of: str, head: str = "<|{{ turn.role }}|>", end: str = "<eos>") -> str:
    """A chat template that writes `of` between a turn's beginning and its end."""
    last = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    return f"{{% for turn in messages %}}{head}{of}{end}{{% endfor %}}{last}"


CONTENT = "{{ turn.content }}"
OWN: dict[str, dict[str, Any]] = {
    "rounds": {"messages": [{"role": role, "content": text} for role, text in
                            (("user", "add them"), ("assistant", "what?"), ("user", "1 and 1"), ("assistant", "2"))]},
    "reasons": {"messages": [{"role": "user", "content": "1 and 1"},
                             {"role": "assistant", "content": "2", "reasoning_content": "they are two"}]},
    "vicuna": {"prompt": "1+1=? ANSWER:", "response": "2"},
}  # fmt: skip
THINKS = turns("{{ turn.reasoning_content if enable_thinking }}{{ turn.content }}")
REWRITES = turns("{{ turn.content if loop.last else turn.content | upper }}")
ENDED = "{% if turn.role == 'assistant' %}<eos>{% endif %}"
GOOD = turns(CONTENT)


def lines_of_model(folder: Path, given: Mapping[str, Any], kind: str = "chats", *words: str) -> list[str]:
    """The lines on a model that is saved as `given` says, with four rows."""
    launch_model.Model(**given).save(folder)
    return lines(folder, kind, *words)


def lines(folder: Path, kind: str = "chats", *words: str) -> list[str]:
    run = resolve(["algorithm=sft", "model=hf", f"model.path={folder}", "data=files", "data.train_files=none.jsonl",
                   *SIZES, *words])  # fmt: skip
    assert isinstance(run.data, Files)
    context = Context(run, here=True)
    found = [
        run.data.row(RawRow(f"t.jsonl:{number}", row, None), "answers")
        for number, row in enumerate([OWN[kind]] * 4 if kind in OWN else rows(f"{kind} 4"), start=1)
    ]
    context.train, context.val = SplitRows([row for row in found if isinstance(row, Row)]), SplitRows()
    return [f"{found.level} {found.line}" for found in (*text.check(context), *context.lengths.results)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / ("a_long_path_is_shown_whole_" * 4) / "small"


@pytest.mark.parametrize(("given", "kind", "expected"), [
    ({"template": GOOD}, "chats", "<eos> (1)"),
    ({"template": "{% for turn in messages %}{% if turn.role == 'user' %}({{ turn.content }}) {% else %}"  # Llama 2's
     "{{ turn.content }}<eos>{% endif %}{% endfor %}"}, "chats", "<eos> (1)"),
    ({"template": "{% if messages[-1].role == 'user' %}" + GOOD + "{% else %}" + GOOD + "{% endif %}"}, "chats",
     "<eos> (1)"),
    ({"template": turns(CONTENT, end="")}, "rounds", "<|user|> (3) or <eos> (1)"),
    ({"tokens": ["<|im_end|>"], "template": turns(CONTENT, end="<|im_end|>")}, "chats", "<|im_end|> (6) or <eos> (1)"),
    ({"template": turns(CONTENT, head="{{ turn.role }}: ", end="\n")}, "chats", "<eos> (1)"),
    ({"tokens": ["<stop>"], "config": {"eos_token_id": [1, 6]}}, "chats", "<eos> (1) or <stop> (6)"),
    ({"tokenizer": {"eos_token": None}, "config": {"eos_token_id": 1}}, "chats", "<eos> (1)"),
])  # fmt: skip
def test_the_tokens_that_end_an_answer_are_named_and_nothing_else_is(
    folder: Path, given: dict[str, Any], kind: str, expected: str
) -> None:
    found = [line for line in lines_of_model(folder, given, kind) if not line.startswith("OK lengths")]
    assert found == [f"OK model.path: answers end with {expected}"]


def test_blanks_that_have_no_place_in_a_text_are_known() -> None:
    signs = {*pre_tokenizers.ByteLevel.alphabet()} - {*"xyz"}
    backend = Tokenizer(models.BPE({sign: number for number, sign in enumerate(sorted(signs))}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    encoder = Encoder(PreTrainedTokenizerFast(tokenizer_object=backend), Files())
    assert not [*measure.unknown(encoder, [Row("t:1", "a" + 9 * " " + "b\u20ac")])]
    assert [*measure.unknown(encoder, [Row("t:1", "a" + 9 * " " + "xy")])]


def test_limits_are_not_applied_and_added_tokens_beyond_the_embedding_may_lie_idle(folder: Path) -> None:
    """Those that a tokenizer was saved with; and one for images, as Gemma 3's text models have."""
    launch_model.Model().save(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=64)
    tokenizer.add_special_tokens(["<image>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert lines(folder) == [
        "OK model.path: answers end with <eos> (1)",
        "OK lengths train: prompts of at most 7 and responses of at most 2 tokens",
    ]
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": turns("<image>" + CONTENT)}))
    assert "FAIL model.path: the tokenizer of" in lines(folder)[0] and "('<image>' has 92)" in lines(folder)[0]


@pytest.mark.parametrize(("given", "kind", "expected"), [
    ({"tokenizer": {"eos_token": None}, "config": {"eos_token_id": None}}, "chats", "such as '<eos>'"),
    ({"tokenizer": {"eos_token": None}, "config": {"eos_token_id": 97}, "template": False}, "chats", "set eos_token"),
    ({"template": turns("{{ turn.content if loop.index > 1 else '' }}")}, "rounds", "leaves out user turns"),
    ({"template": THINKS}, "reasons", "leaves out the reasoning of answers, as of t.jsonl:1 (4 of 4 rows)"),
    ({"template": THINKS}, "reasons", "; use 'data.template_args={enable_thinking: true}'"),
    ({"template": REWRITES}, "rounds", "OK sequences train: 4 of 4 rows become several sequences"),
    ({"template": turns(CONTENT, end=ENDED).replace("<|assistant|>", "ANSWER:")}, "vicuna", "hold 'ANSWER:'"),
    ({"template": turns("{{ raise_exception('no systems') }}")}, "systems", "use rows without system turns"),
    ({"template": turns("{{ turn.content + 1 }}")}, "chats", "FAIL model.path: 4 rows cannot be written"),
    ({"template": "{% for turn in messages %}"}, "chats", "use data.chat_template=never"),
    ({"template": "{{ 'a' * 2000000000 }}" + GOOD}, "chats", "the chat template fails: MemoryError"),
    ({"template": "{{ 'a' * 20000000 }}" + GOOD}, "chats", "the chat template writes 20,000,"),
])  # fmt: skip
def test_what_is_wrong_is_named(folder: Path, given: dict[str, Any], kind: str, expected: str) -> None:
    assert expected in "\n".join(lines_of_model(folder, given, kind))


def test_arguments_that_the_template_does_not_read_are_named(folder: Path) -> None:
    found = lines_of_model(folder, {"template": THINKS}, "chats", "data.template_args={enable_thinkng: false}")
    named = "the chat template does not read enable_thinkng; did you mean enable_thinking?"
    assert f"WARN data.template_args: {named}" in found
    read = lines(folder, "chats", "data.template_args.enable_thinking=false")
    assert not any("template_args" in line for line in read)


@pytest.mark.parametrize("endless", [
    "{% for one in range(100000) %}{% for other in range(100000) %}{% endfor %}{% endfor %}",
    "{{ (10 ** 9) ** (10 ** 8) }}",  # within one call of the library
    "{{ ('a\n' * 1000000) | indent(100000) }}",  # fails for each row, after a second
])  # fmt: skip
def test_a_template_that_computes_without_end_is_stopped(
    folder: Path, endless: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure._BoundedEncoder, "allowed", 0.1)
    (line,) = lines_of_model(folder, {"template": endless + GOOD})
    assert line.startswith(f"FAIL model.path: the chat template of '{folder}' computes for more than 2 s")


@pytest.mark.parametrize(("name", "content", "expected"), [
    ("tokenizer.json", "[]", "tokenizer.json' cannot be loaded: "),
    ("tokenizer.json", '{"model": 1}', "tokenizer.json' cannot be loaded: "),
    ("tokenizer.json", None, "holds no tokenizer; put tokenizer.json and tokenizer_config.json beside the weights"),
    ("tokenizer.model", "\n\x05pieces", "no tokenizer.json, and the package sentencepiece is not installed; run pip"),
    ("tokenizer.model", "IQ== 0\nIg== 1\n", "the package tiktoken is not installed"),
    ("tokenizer.model", "junk", "is neither SentencePiece's nor tiktoken's"),
    ("tokenizer_config.json", '{"auto_map": {"AutoTokenizer": ["own.Own", null]}}', "set model.trust_remote_code=true"),
])  # fmt: skip
def test_files_that_make_no_tokenizer(folder: Path, name: str, content: str | None, expected: str) -> None:
    launch_model.Model().save(folder)
    (folder / "tokenizer.json").unlink()
    if content is not None:
        (folder / name).write_text(content)
    assert expected in "\n".join(lines(folder))


def test_adapters_that_were_saved_alone_have_the_tokenizer_of_their_base(folder: Path, tmp_path: Path) -> None:
    launch_model.Model().save(folder)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder)}))
    ids = [load_tokenizer(Pretrained(path=str(path)))("1 and 1").input_ids for path in (folder, adapter)]
    assert ids[0] == ids[1]
    assert process._load_s(Pretrained(path=str(adapter))) == process._load_s(Pretrained(path=str(folder)))


def test_a_tokenizer_whose_texts_grow_without_end_is_stopped(folder: Path) -> None:
    launch_model.Model().save(folder)
    grows = {"type": "Replace", "pattern": {"Regex": "."}, "content": "aaaaaaaaaa"}
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [grows] * 12}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert f"FAIL model.path: the tokenizer of '{folder}'" in lines(folder)[0]


def test_added_tokens_are_not_listed_for_each_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tokenizers have thousands of them."""
    launch_model.Model().save(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    every, asked = tokenizer.added_tokens_decoder, list[int]()
    monkeypatch.setattr(PreTrainedTokenizerFast, "added_tokens_decoder", property(lambda _: asked.append(1) or every))
    encoder, counts = Encoder(tokenizer, Files()), list[int]()
    for number in range(5):
        encoder.demonstration(number, Row(f"f:{number}", "1+1", "2"))
        counts.append(len(asked))
    assert counts[0] == counts[-1]


def test_the_limit_of_cpu_time_is_of_one_question(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large datasets take longer than one question may."""
    launch_model.Model().save(folder)
    spent = itertools.count(1000, 1000)
    monkeypatch.setattr(time, "process_time", lambda: float(next(spent)))
    monkeypatch.setattr(measure.Measure, "tokens", lambda *_: resource.getrlimit(resource.RLIMIT_CPU)[0])
    with process.TextProcess(Pretrained(path=str(folder)), Files()) as text:
        assert text.tokens("1") + 1000 == text.tokens("2")


def test_the_same_rows_are_looked_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a file of the model is another one."""
    template = turns("{% if turn.role != 'system' %}{{ turn.content }}{% endif %}")
    found = lines_of_model(folder, {"template": template}, "systems")
    assert "out system turns" in found[0]
    with monkeypatch.context() as patched:
        patched.setattr(process, "get_context", lambda *_: pytest.fail("starts a process"))
        assert lines(folder, "systems") == found
    (folder / "chat_template.jinja").write_text(GOOD)
    assert not any("system" in line for line in lines(folder, "systems"))


@pytest.mark.parametrize(("limit", "load", "expected"), [
    ("LOAD_S", lambda: sum(1 for _ in itertools.count()), "takes too long to load; use one with fewer"),
    ("WALL_S", lambda: process.signal.pause(), "gives no answer for 0.1 s; run it again"),  # waits for a lock
    ("", lambda: process.os.kill(process.os.getpid(), 9), "by SIGKILL"),
])  # fmt: skip
def test_a_tokenizer_that_does_not_load_is_given_up_on(
    folder: Path, limit: str, load: Callable[[], Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit:
        monkeypatch.setattr(process, limit, 0.1)
    monkeypatch.setattr(measure, "Measure", lambda *_: load())
    assert expected in lines_of_model(folder, {})[0]


def test_long_conversations_may_take_a_template_long(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch_model.Model(template=turns("{% for one in range(10000) %}{% endfor %}" + CONTENT)).save(folder)
    monkeypatch.setattr(measure._BoundedEncoder, "allowed", 0.01)
    talk = tuple(Message(role, "1") for _ in range(20) for role in ("user", "assistant"))
    with process.TextProcess(Pretrained(path=str(folder)), Files()) as text:
        assert text.lengths([Row("t:1", talk)], "answers") == [(4, 116, 1)]


def test_a_tokenizer_that_draws_its_tokens_is_refused() -> None:
    tokenizer = character_tokenizer("ab")
    merging = {"a": 0, "b": 1, "ab": 2}
    tokenizer._tokenizer = Tokenizer(models.BPE(merging, [("a", "b")], dropout=0.5))
    (found,) = measure.dropout(Encoder(tokenizer, Files()))
    assert found.level == "FAIL" and "model.dropout is 0.5" in found.line and "set it to null" in found.line
