"""Runs in the process of `process.TextProcess`: counts tokens, and checks tokenizer and chat template on rows."""

from __future__ import annotations

import gc
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from launcher.core.check_result import CheckResult
from launcher.core.problems import nearest, short_repr, shortened
from launcher.models import config
from launcher.models.pretrained import Pretrained, tokenizer_folder, weights_of
from launcher.spec.algorithm import Kind
from launcher.spec.data import Dataset, RefusedRow, Row
from launcher.spec.model import Model
from launcher.text.bounds import EQUAL, FAIL_SHARE, RENDER_BYTES, RENDER_S, SIGN_S, TOKENIZER, TURN_S, WARN_SHARE, Count
from launcher.text.encoder import (
    CUTS,
    PROBE,
    Encoder,
    Tokens,
    Unwritable,
    ids_of,
    imitated_turns,
    prompt_lengths,
    turns_of,
    with_rejected,
)
from launcher.text.stop_tokens import Turn
from launcher.text.tokenizer import TokenTexts, as_ids, load_tokenizer, tokenizer_by_class
from launcher.text.turns import is_call, reasoning_in

_EMPTY_THOUGHT = re.compile(r"\s*(?:<(\w+)>)?\s*</(?:\1|\w*think\w*)>")
WRITTEN = 2**20
"""Characters that a template may add to a row; more than any list of tools needs."""
PAGE = resource.getpagesize()
TEXTS = ("config.json", "generation_config.json")
"""Files that name the tokens that end an answer, beside the tokenizer's own."""


class Measure:
    def __init__(self, model: Model, data: Dataset) -> None:
        endless = replace(data, max_prompt_length=2**40, max_response_length=2**40, max_length=None)
        self.encoder = _BoundedEncoder(load_tokenizer(model), endless)
        self.cutting = Encoder(self.encoder.tokenizer, data) if data.truncation in CUTS else None
        backend = self.encoder.tokenizer.backend_tokenizer  # tokenizer.json may set limits; training uses none
        backend.no_truncation()
        backend.no_padding()
        with _limit_resources(RENDER_S, signal.ITIMER_VIRTUAL):
            backend.encode(PROBE)  # rules that make texts grow endlessly do it with this one, too
        self.model = model

    def tokens(self, text: str) -> int:
        return len(self.encoder.tokenizer(text, add_special_tokens=False).input_ids)

    def templated(self) -> bool:
        return self.encoder.templated

    def lengths(self, rows: Sequence[Row], kind: Kind) -> list[Count]:
        return [count_tokens(self.encoder, row, kind, self.cutting) for row in rows]

    def pieces(self, rows: Sequence[Row], kind: Kind) -> list[list[tuple[str, bool]]]:
        """See `process.TextProcess.pieces`."""
        encoder = self.cutting or self.encoder
        texts, pieces = TokenTexts(encoder.tokenizer), list[list[tuple[str, bool]]]()
        for row in rows:
            sides = [row] if row.rejected is None else [row, with_rejected(row)]
            write = encoder.demonstration if kind == "answers" or len(sides) > 1 else encoder.prompt
            for tokens in (write(0, side) for side in sides):
                for sequence in tokens.sequences if isinstance(tokens, Tokens) else ():
                    learned = map(bool, sequence.mask or [0] * len(sequence.ids))
                    pieces.append(list(zip(texts(sequence.ids), learned, strict=True)))
        return pieces

    def first_split_difference(self, rows: Sequence[Row]) -> str:
        """See `process.TextProcess.first_split_difference`."""
        assert isinstance(self.model, Pretrained)
        via_class, from_json = tokenizer_by_class(weights_of(self.model.path)), self.encoder.tokenizer
        texts = [PROBE, *(text for group in _collect_texts(rows).values() for text in group)]
        return next((text for text in texts if via_class(text).input_ids != from_json(text).input_ids), "")

    def facts(self, rows: Sequence[Row]) -> list[CheckResult]:
        results = [*dropout(self.encoder), *unknown(self.encoder, rows)]
        if isinstance(self.model, Pretrained):
            folder = tokenizer_folder(Path(weights_of(self.model.path)))
            ends = EndTokens(self.encoder.tokenizer, folder)
            results += [*ends.beyond_the_model(lambda: _trained_ids(self.encoder, rows)), *ends.results()]
            if self.encoder.templated:
                results += check_template(self.encoder, rows, folder)
            results += ends.report_stops(self.encoder.stop_tokens.ids)
        return results


def count_tokens(encoder: Encoder, row: Row, kind: Kind, cutting: Encoder | None = None) -> Count:
    """The tokens of a row's prompt and of its longer answer (0 without one) and its number of sequences, or why it
    cannot be written. `cutting` applies the run's length limits to a pair, which may make both answers equal."""
    if kind != "answers" and row.rejected is None:
        tokens = encoder.prompt(0, row)
        return tokens.reason if isinstance(tokens, RefusedRow) else (len(tokens.ids), 0, 1)
    opening, longest, sequences, ids_by_side = 0, 0, 0, list[list[list[int]]]()
    for side in [row] if row.rejected is None else [row, with_rejected(row)]:
        tokens = encoder.demonstration(0, side)
        if isinstance(tokens, RefusedRow):
            return tokens.reason
        prompts = prompt_lengths(tokens.sequences)
        answers = (len(each.ids) - prompt for each, prompt in zip(tokens.sequences, prompts, strict=True))
        opening, longest = max(opening, prompts[0]), max(longest, *answers)
        sequences = max(sequences, len(tokens.sequences))
        ids_by_side.append(ids_of(tokens))
    cut = cutting.pair(0, row) if cutting and row.rejected is not None else None
    if ids_by_side[0] in ids_by_side[1:] or isinstance(cut, RefusedRow):
        return EQUAL
    return opening, longest, sequences


class _BoundedEncoder(Encoder):
    """Ends its process if a template computes endlessly; for a row that needs too much memory, rendering fails."""

    spent = 0.0
    allowed = RENDER_S

    def render(self, turns: list[Turn], args: Mapping[str, Any] | None = None, open_answer: bool = False) -> str:
        size = sum(len(text) for turn in (*turns, args or {}) for text in map(str, turn.values()))
        self.allowed += TURN_S * len(turns) + SIGN_S * size
        started = time.process_time()
        try:
            with _limit_resources(self.allowed - self.spent):
                text = super().render(turns, args, open_answer)
        except Unwritable as error:
            if "MemoryError" in str(error):
                gc.collect()  # what it has written is held by the frames of its error, in circles
            raise
        finally:
            self.spent += time.process_time() - started  # also of a call that fails
        if len(text) > WRITTEN + 8 * size:
            raise Unwritable(f"the chat template writes {len(text):,} characters for {size:,}")
        return text


@contextmanager
def _limit_resources(seconds: float, timer: int = signal.ITIMER_PROF) -> Iterator[None]:
    """Limit the block: `timer` signals after that many CPU seconds; memory may grow by at most RENDER_BYTES."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[0])
        limit = pages * PAGE + RENDER_BYTES
        if hard < 0 or limit < hard:
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except OSError:  # a system without /proc
        pass
    signal.setitimer(timer, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# ---- tokenizer


def dropout(encoder: Encoder) -> Iterator[CheckResult]:
    """Check that a text always has the same tokens (BPE dropout, Provilkov et al. 2020, arXiv:1910.13267)."""
    if share := getattr(encoder.tokenizer.backend_tokenizer.model, "dropout", None):
        message = f"model.dropout is {share} in its {TOKENIZER}, so that a text has other tokens whenever it is read"
        yield CheckResult("FAIL", "model.path", message, "set it to null")


def unknown(encoder: Encoder, rows: Sequence[Row]) -> Iterator[CheckResult]:
    """Check, for prompts and for answers, how much of their text has no token."""
    backend, unk = encoder.tokenizer.backend_tokenizer, encoder.tokenizer.unk_token_id
    for what, texts in _collect_texts(rows).items():
        known = total = 0
        for text, encoded in zip(texts, backend.encode_batch(texts, add_special_tokens=False), strict=True):
            spans, end = list[str](), 0
            for number, (start, stop) in zip(encoded.ids, encoded.offsets, strict=True):
                if number != unk:
                    spans.append(text[max(start, end) : stop])  # byte tokens of one character share its offsets
                    end = max(end, stop)
            total += _count_visible(text)
            known += _count_visible("".join(spans))
        if total and known < (1 - WARN_SHARE) * total:
            message = f"{1 - known / total:.0%} of the text of the {what} has no token and becomes <unk>, or nothing"
            fix = "use model.path of a model whose tokenizer has this alphabet in its vocabulary, or other rows"
            yield CheckResult("FAIL" if known < (1 - FAIL_SHARE) * total else "WARN", "model.path", message, fix)


def _count_visible(text: str) -> int:
    """Number of non-blank characters: some tokenizers leave blanks out of the offsets of their tokens."""
    return len("".join(text.split()))


def _trained_ids(encoder: Encoder, rows: Sequence[Row]) -> set[int]:
    """All token ids that occur in training on these rows."""
    sides = [side for row in rows for side in (row, with_rejected(row) if row.rejected else row)]
    encoded = [write(0, side) for side in sides for write in (encoder.demonstration, encoder.prompt)]
    return {
        number for tokens in encoded if isinstance(tokens, Tokens) for each in tokens.sequences for number in each.ids
    }


def _collect_texts(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The texts of prompts and those of answers, stripped."""
    prompts, answers = list[str](), list[str]()
    for row in rows:
        turns = turns_of(row.prompt)
        prompts += [(turn["content"] or "").strip() for turn in turns if turn["role"] != "assistant"]
        answers += [(turn["content"] or "").strip() for turn in turns if turn["role"] == "assistant"]
        answers += [text.strip() for text in (row.response, row.rejected) if text]
    return {"prompts": prompts, "answers": answers}


class EndTokens:
    """Checks of the tokens that end an answer: those of the tokenizer, and those that the files `TEXTS` name."""

    def __init__(self, tokenizer: Any, folder: Path) -> None:
        self.tokenizer, self.folder = tokenizer, folder
        self.tokens: dict[int, str] = {number: token for token, number in tokenizer.get_vocab().items()}
        self.stated = {name: (config.read(folder, name) or {}).get("eos_token_id") for name in TEXTS}

    def report_stops(self, found: Sequence[int]) -> Iterator[CheckResult]:
        """Report where sampling stops: at the ids `found` in the chat template, and at those that the folder names."""
        if self.tokenizer.eos_token_id is None:
            return
        of_config, of_generation = map(as_ids, self.stated.values())
        stop_ids = dict.fromkeys(number for number in (*found, *(of_generation or of_config)) if number in self.tokens)
        listed = " or ".join(f"{self.name(number)} ({number})" for number in stop_ids)
        yield CheckResult("OK", "model.path", f"answers end with {listed}")

    def name(self, number: int) -> str:
        """The token of an id, "None" where the tokenizer has none: a file may name any number."""
        return shortened(str(self.tokens.get(number)))

    def beyond_the_model(self, produced: Callable[[], set[int]]) -> Iterator[CheckResult]:
        """Check for ids that the model has no embedding for. Added tokens that no row produces may have such ids: Gemma
        3's text models have one for images."""
        tokenizer, size = self.tokenizer, (config.read(self.folder) or {}).get("vocab_size")
        beyond = {number for number in self.tokens if type(size) is int and number >= size}
        if not beyond:
            return
        ends = {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id}
        ordinary = beyond - set(tokenizer.added_tokens_decoder)  # vocabulary tokens, which any text may contain
        if reachable := ordinary or beyond & ends or beyond & produced():
            message = f"the tokenizer of {self.folder} makes ids up to {max(beyond)}, and the model knows {size}"
            message += f" ({self.name(max(reachable))!r} has {max(reachable)})"
            yield CheckResult("FAIL", "model.path", message, "use the tokenizer that the model was trained with")

    def results(self) -> Iterator[CheckResult]:
        eos = self.tokenizer.eos_token_id
        if eos is None:
            fix = f"set eos_token in {self.folder / 'tokenizer_config.json'}, such as '<eos>'"
            yield CheckResult("FAIL", "model.path", "its tokenizer has no eos_token, so no answer could end", fix)
            return
        for name, stated in self.stated.items():
            ids, use_eos = as_ids(stated), f"set eos_token_id to {eos} ({self.name(eos)}) in {self.folder / name}"
            absent = [number for number in ids if number not in self.tokens]
            if stated not in (None, []) and len(ids) < (len(stated) if isinstance(stated, list) else 1):
                message = f"{name} has eos_token_id {short_repr(stated, 60)}, which is no number of a token"
                yield CheckResult("FAIL", "model.path", message, use_eos)
            elif absent:
                message = f"{name} has eos_token_id {absent[0]:,}, and the tokenizer has no such token"
                yield CheckResult("WARN", "model.path", message, use_eos)
            elif ids and eos not in ids:
                others = ", ".join(f"{self.name(number)} ({number})" for number in ids)
                expected = f"the tokenizer's eos_token is {self.name(eos)} ({eos})"
                fix = f"{use_eos}, or the tokenizer's eos_token to {others}"
                yield CheckResult("WARN", "model.path", f"{name} ends answers with {others}, and {expected}", fix)


# ---- chat template


class WrittenRow(NamedTuple):
    """What the chat template writes of a row's last answer, and of the turns before it."""

    row: Row
    turns: list[Turn]
    before: list[Turn]
    opening: str
    answer: Turn | None
    learned: str | None
    """The text that is learned of the answer; None where there is no answer, or where it cannot be written."""


def check_template(encoder: Encoder, rows: Sequence[Row], folder: Path) -> Iterator[CheckResult]:
    """Check what a chat template writes of rows."""
    if not (written := [each for row in rows if (each := _write(encoder, row))]):
        return
    single = folder / "chat_template.jinja"
    file = single if single.is_file() else folder / "tokenizer_config.json"
    yield from _lost_texts(written, file)
    yield from _lost_arguments(encoder, written)
    yield from _lost_reasoning(encoder, written)
    yield from _double_templates(encoder, written)
    yield from _unopened_answers(encoder, written[0], file)


def _write(encoder: Encoder, row: Row) -> WrittenRow | None:
    turns, places = imitated_turns(row, "last")
    before, answer = (turns[: places[0]], turns[places[0]]) if places else (turns, None)
    try:
        opening = encoder.render(before, row.template_args, open_answer=True)
    except Unwritable:  # the check of lengths reports it
        return None
    learned = None
    if answer:
        with suppress(Unwritable):
            learned = encoder.exchange(before, answer, row.template_args).answer
    return WrittenRow(row, turns, before, opening, answer, learned)


def _loss(what: str, rows: Sequence[Row], of: Sequence[Any], fix: str, effect: str = "") -> Iterator[CheckResult]:
    """Warn of `rows`, among those it concerns, if there are any."""
    if rows:
        message = f"{what}, as of {rows[0].where} ({len(rows)} of {len(of)} rows){effect}"
        yield CheckResult("WARN", "model.path", message, fix)


def _lost_texts(written: Sequence[WrittenRow], file: Path) -> Iterator[CheckResult]:
    """Check for turns that the template does not write."""
    questions = {tuple((turn["role"], turn["content"]) for turn in each.before) for each in written}
    if len(questions) > 1 and len({each.opening for each in written}) == 1:
        message = f"the chat template writes the same, {shortened(written[0].opening)!r}, whatever is asked"
        yield CheckResult("FAIL", "model.path", message, f"fix the chat template in {file}")
    else:
        yield from _lost_turns(written, file)


def _lost_turns(written: Sequence[WrittenRow], file: Path) -> Iterator[CheckResult]:
    """Check for turns most of whose words are missing."""
    whole = f"write the assistant's content whole in {file} (chat_template), or use data.chat_template=never"
    parts = [
        ("most of the answers", ", so that is not learnt", whole, "assistant",
         [(each.row, [each.answer], each.learned) for each in written if each.answer and each.learned is not None]),
        *((f"{role} turns", "", f"use rows without {role} turns, or write them in {file} (chat_template)", role,
           [(each.row, each.before, each.opening) for each in written]) for role in ("system", "user")),
    ]  # fmt: skip
    for what, effect, fix, role, cases in parts:
        present = [(row, contents, text) for row, turns, text in cases if (contents := _contents(turns, role))]
        lost = [row for row, contents, text in present if not all(_has_most_words(text, each) for each in contents)]
        yield from _loss(f"the chat template leaves out {what}", lost, present, fix, effect)


def _lost_arguments(encoder: Encoder, written: Sequence[WrittenRow]) -> Iterator[CheckResult]:
    """Check for arguments, tools and their keys that the template does not read or write."""
    words = set(re.findall(r"\w+", encoder.template))
    for name in sorted(encoder.data.template_args.keys() - words):
        similar = nearest(name, sorted(words))
        fix = f"did you mean {similar}?" if similar else "leave it out"
        yield CheckResult("WARN", "data.template_args", f"the chat template does not read {name}", fix)
    names = {name for each in written for name in each.row.template_args} - {"tools"}
    for name in [name for name in ("tools", "tool_calls", *sorted(names)) if name not in words]:
        rows = [each.row for each in written
                if each.row.template_args.get(name) or any(turn.get(name) for turn in each.turns)]  # fmt: skip
        use = "use a model whose template has tools" if name.startswith("tool") else "use one that reads it"
        yield from _loss(f"the chat template does not write {name}", rows, written, f"{use}, or rows without them")
    if "tools" in words:
        yield from _lost_tools(written)


def _lost_tools(written: Sequence[WrittenRow]) -> Iterator[CheckResult]:
    """Check for keys of tools that the template does not write."""
    lost = {key: each.row for each in written
            for key in _lost_keys(each.row.template_args.get("tools"), each.opening)}  # fmt: skip
    if lost:
        first = next(iter(lost.values())).where
        message = f"the chat template leaves out {', '.join(lost)} of tools, as of {first}"
        fix = "write them as it reads them: with type and function, of name, description and parameters"
        yield CheckResult("WARN", "model.path", message, fix)


def _lost_reasoning(encoder: Encoder, written: Sequence[WrittenRow]) -> Iterator[CheckResult]:
    """Check for reasoning that is not learned, and for an empty one that is."""
    has_switch = "enable_thinking" in encoder.template
    thought = [(each.row, reasoning_in(each.answer), each.learned or "") for each in written if each.answer]
    unwritten = [row for row, reasoning, text in thought if reasoning not in text]
    enable = "use 'data.template_args={enable_thinking: true}'"
    fix = enable if has_switch else "use a model whose template writes it"
    what = "the chat template leaves out the reasoning of answers"
    yield from _loss(what, unwritten, written, fix, ", so that is not learnt")
    empty = [row for row, reasoning, text in thought if not reasoning and _EMPTY_THOUGHT.match(text)]
    disable = "use 'data.template_args={enable_thinking: false}', or rows with reasoning"
    fix = disable if has_switch else "use rows with reasoning, or a model that does not think"
    yield from _loss("an empty thought is learnt before answers", empty, written, fix)


def _double_templates(encoder: Encoder, written: Sequence[WrittenRow]) -> Iterator[CheckResult]:
    """Check whether prompts have what the template writes around them."""
    try:
        opening = encoder.render([{"role": "user", "content": PROBE}], open_answer=True)
    except Unwritable:
        return
    before, _, after = opening.partition(PROBE)
    tokens = (token.content for token in encoder.tokenizer.added_tokens_decoder.values())
    marks = [mark for mark in (after.strip(), *tokens) if len(mark) > 2 and mark in before + after]
    prompts = [(each.row, "\n".join(_contents(each.before, "user"))) for each in written]
    templated = [(row, hits[0]) for row, text in prompts if (hits := [mark for mark in marks if mark in text])]
    if 2 * len(templated) > len(written):
        row, mark = templated[0]
        got = f"the prompts hold {mark!r} (the first is {row.where}), which the chat template writes around them, too"
        yield CheckResult("WARN", "model.path", got, "use data.chat_template=never, or prompts without it")


def _unopened_answers(encoder: Encoder, first: WrittenRow, file: Path) -> Iterator[CheckResult]:
    """Check whether the template opens the answer to the first row."""
    turns, args, answer = first.before, first.row.template_args, {"role": "assistant", "content": PROBE}
    try:
        unopened = encoder.render(turns, args)
        head, probe, _ = encoder.exchange(turns, answer, args).answer.partition(PROBE)
    except Unwritable:
        return
    if probe and first.opening == unopened and head.strip():
        got = "the chat template does not open the assistant's turn: with add_generation_prompt it writes the same"
        fix = f"let {file} end with {{% if add_generation_prompt %}}{shortened(head.strip())}{{% endif %}}"
        yield CheckResult("WARN", "model.path", got, fix)


def _lost_keys(tools: Sequence[Any] | None, text: str) -> list[str]:
    """The keys of tools of which `text` has neither the name nor the value."""
    nodes = [tool.get("function", tool) for tool in tools or () if is_call(tool)]
    return [key for node in nodes for key, value in node.items()
            if value and key not in text and not (isinstance(value, str) and value[:20] in text)]  # fmt: skip


def _contents(turns: Sequence[Turn], role: str) -> list[str]:
    return [turn["content"] for turn in turns if turn["role"] == role and (turn["content"] or "").strip()]


def _has_most_words(text: str, content: str) -> bool:
    """Whether most words of `content` are in `text`; blanks may differ, as templates change them."""
    words = content.split()
    return content.strip() in text or 2 * sum(word in text for word in words) > len(words)
