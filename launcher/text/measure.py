"""What `process.TextProcess` does in its process: token counts, and what tokenizer and chat template do to rows."""

from __future__ import annotations

import re
import resource
import signal
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.core.check_result import CheckResult
from launcher.core.problems import nearest, short_repr, shortened
from launcher.models import config
from launcher.models.pretrained import Pretrained, tokenizer_folder, weights_of
from launcher.spec.algorithm import Kind
from launcher.spec.data import Dataset, Row
from launcher.spec.model import Model
from launcher.text.bounds import MOSTLY, RENDER_BYTES, RENDER_S, SIGN_S, SOME, TOKENIZER, TURN_S, Count
from launcher.text.encoder import (
    CUTS,
    PROBE,
    Encoder,
    Tokens,
    Unwritable,
    imitated,
    turns_of,
    with_rejected,
)
from launcher.text.lengths import count_tokens
from launcher.text.stop_tokens import Turn
from launcher.text.token_texts import TokenTexts
from launcher.text.tokenizer import load_tokenizer, tokenizer_by_class
from launcher.text.turns import is_call, reasoning_in

_EMPTY_THOUGHT = re.compile(r"\s*(?:<(\w+)>)?\s*</(?:\1|\w*think\w*)>")
WRITTEN = 2**20
"""Characters that a template may add to a row; more than any list of tools has."""
PAGE = resource.getpagesize()
TEXTS = ("config.json", "generation_config.json")
"""What names the tokens that end an answer, beside the tokenizer."""


class Measure:
    def __init__(self, model: Model, data: Dataset) -> None:
        endless = replace(data, max_prompt_length=2**40, max_response_length=2**40, max_length=None)
        self.encoder = _BoundedEncoder(load_tokenizer(model), endless)
        self.cutting = Encoder(self.encoder.tokenizer, data) if data.truncation in CUTS else None
        backend = self.encoder.tokenizer.backend_tokenizer  # tokenizer.json may hold limits; whoever trains sets none
        backend.no_truncation()
        backend.no_padding()
        with _bounds(RENDER_S, signal.ITIMER_VIRTUAL):
            backend.encode(PROBE)  # rules that make a text grow without end do so with a short one, too
        self.model = model

    def tokens(self, text: str) -> int:
        return len(self.encoder.tokenizer(text, add_special_tokens=False).input_ids)

    def templated(self) -> bool:
        return self.encoder.templated

    def lengths(self, rows: Sequence[Row], kind: Kind) -> list[Count]:
        return count_tokens(self.encoder, rows, kind, self.cutting)

    def pieces(self, rows: Sequence[Row], kind: Kind) -> list[list[tuple[str, bool]]]:
        """See `process.TextProcess.pieces`."""
        encoder = self.cutting or self.encoder
        texts, found = TokenTexts(encoder.tokenizer), list[list[tuple[str, bool]]]()
        for row in rows:
            sides = [row] if row.rejected is None else [row, with_rejected(row)]
            write = encoder.demonstration if kind == "answers" or len(sides) > 1 else encoder.prompt
            for tokens in (write(0, side) for side in sides):
                for each in tokens.sequences if isinstance(tokens, Tokens) else ():
                    learned = map(bool, each.mask or [0] * len(each.ids))
                    found.append(list(zip(texts(each.ids), learned, strict=True)))
        return found

    def differs_by_turn(self, rows: Sequence[Row]) -> str:
        """See `process.TextProcess.differs_by_turn`."""
        return next((row.where for row in rows if not _same_in_parts(self.encoder, row)), "")

    def split_otherwise(self, rows: Sequence[Row]) -> str:
        """See `process.TextProcess.split_otherwise`."""
        assert isinstance(self.model, Pretrained)
        theirs, ours = tokenizer_by_class(weights_of(self.model.path)), self.encoder.tokenizer
        texts = [PROBE, *(text for part in _texts(rows).values() for text in part)]
        return next((text for text in texts if theirs(text).input_ids != ours(text).input_ids), "")

    def facts(self, rows: Sequence[Row]) -> list[CheckResult]:
        found = [*unknown(self.encoder, rows), *changed(self.encoder, rows)]
        if isinstance(self.model, Pretrained):
            folder = tokenizer_folder(Path(weights_of(self.model.path)))
            ends = Ends(self.encoder.tokenizer, folder)
            found += [*ends.beyond_the_model(lambda: _produced(self.encoder, rows)), *ends.results()]
            if self.encoder.templated:
                found += _Template(self.encoder, rows, folder).results()
            found += ends.stops(self.encoder.stop_tokens.ids)
        return found


def _same_in_parts(encoder: Encoder, row: Row) -> bool:
    """Whether the turns of a conversation, each written alone and without what the template puts before a first one,
    are together what it writes of all. A conversation that cannot be written is another check's."""
    turns, args = imitated(row, "all")[0], row.template_args or {}
    others = {name: value for name, value in args.items() if name != "tools"}  # the first turn alone comes with them
    empty: Turn = {"role": "user", "content": ""}
    try:
        first = encoder.render([empty], others)
        before = first[: -(len(encoder.render([empty, empty], others)) - len(first))]
        parts = [_render_turn(encoder, turn, args if place == 0 else others) for place, turn in enumerate(turns)]
        whole = encoder.render(turns, args)
    except Unwritable:
        return True
    bare = [place > 0 and turn["role"] != "system" for place, turn in enumerate(turns)]
    return whole == "".join(part[len(before) :] if cut else part for part, cut in zip(parts, bare, strict=True))


def _render_turn(encoder: Encoder, turn: Turn, args: Mapping[str, Any]) -> str:
    """One turn; after an empty question, where the template refuses it without."""
    try:
        return encoder.render([turn], args)
    except Unwritable:
        empty: Turn = {"role": "user", "content": ""}
        return encoder.render([empty, turn], args).removeprefix(encoder.render([empty], args))


class _BoundedEncoder(Encoder):
    """Ends its process where a template computes without end; a row that takes too much memory cannot be written."""

    spent = 0.0
    allowed = RENDER_S

    def render(self, turns: list[Turn], args: Mapping[str, Any] | None = None, open_answer: bool = False) -> str:
        given = sum(len(text) for turn in (*turns, args or {}) for text in map(str, turn.values()))
        self.allowed += TURN_S * len(turns) + SIGN_S * given
        started = time.process_time()
        try:
            with _bounds(self.allowed - self.spent):
                text = super().render(turns, args, open_answer)
        finally:
            self.spent += time.process_time() - started  # of one that fails, too
        if len(text) > WRITTEN + 8 * given:
            raise Unwritable(f"the chat template writes {len(text):,} characters for {given:,}")
        return text


@contextmanager
def _bounds(seconds: float, timer: int = signal.ITIMER_PROF) -> Iterator[None]:
    """The timer's signal ends the process after so many CPU seconds; no call inside gets more than RENDER_BYTES."""
    soft, most = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[0])
        limit = pages * PAGE + RENDER_BYTES
        if most < 0 or limit < most:
            resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    except OSError:  # a system without it
        pass
    signal.setitimer(timer, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, most))


# ---- tokenizer


def unknown(encoder: Encoder, rows: Sequence[Row]) -> Iterator[CheckResult]:
    """Of the prompts and of the answers: whether some of their text has no token."""
    backend, unk = encoder.tokenizer.backend_tokenizer, encoder.tokenizer.unk_token_id
    for what, texts in _texts(rows).items():
        known = whole = 0
        for text, encoded in zip(texts, backend.encode_batch(texts, add_special_tokens=False), strict=True):
            spans, end = list[str](), 0
            for number, (first, last) in zip(encoded.ids, encoded.offsets, strict=True):
                if number != unk:
                    spans.append(text[max(first, end) : last])  # the bytes of one character share its place
                    end = max(end, last)
            whole += _signs(text)
            known += _signs("".join(spans))
        if whole and known < (1 - SOME) * whole:
            message = f"{1 - known / whole:.0%} of the text of the {what} has no token and becomes <unk>, or nothing"
            fix = "use model.path of a model whose tokenizer has this alphabet in its vocabulary, or other rows"
            yield CheckResult("FAIL" if known < (1 - MOSTLY) * whole else "WARN", "model.path", message, fix)


def changed(encoder: Encoder, rows: Sequence[Row]) -> Iterator[CheckResult]:
    """Whether texts come back from their tokens otherwise than they were, beyond blanks and forms of a character."""
    tokenizer, where = encoder.tokenizer, "model.path"
    if dropout := getattr(tokenizer.backend_tokenizer.model, "dropout", None):
        message = f"model.dropout is {dropout} in its {TOKENIZER}, so that a text has other tokens whenever it is read"
        yield CheckResult("FAIL", where, message, "set it to null")
        return
    for texts in (*_texts(rows).values(), [row.ground_truth for row in rows if row.ground_truth]):
        encoded = tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
        read = [(text, tokenizer.decode(each.ids)) for text, each in zip(texts, encoded, strict=True)
                if tokenizer.unk_token_id not in each.ids]  # fmt: skip  # others are counted as unknown
        others = [(text, back) for text, back in read
                  if _letters(text) != _letters(back) or len(back.split()) > 2 * len(text.split())]  # fmt: skip
        if 2 * len(others) > len(texts):
            text, back = min(others, key=lambda pair: len(pair[0]))
            got = f"the tokenizer reads {short_repr(text, 60)} back as {short_repr(back, 60)}"
            message = f"{got} ({len(others)} of {len(texts)} texts), which is what rewards and readers of answers see"
            yield CheckResult(
                "WARN", where, message, f"use {TOKENIZER} as its publisher has it, or one that keeps texts"
            )
            return


def _letters(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).split())


def _signs(text: str) -> int:
    """Characters that are not blank: some tokenizers leave blanks out of the places of their tokens."""
    return len("".join(text.split()))


def _produced(encoder: Encoder, rows: Sequence[Row]) -> set[int]:
    """The ids that training on these rows takes."""
    sides = [side for row in rows for side in (row, with_rejected(row) if row.rejected else row)]
    written = [write(0, side) for side in sides for write in (encoder.demonstration, encoder.prompt)]
    return {
        number for tokens in written if isinstance(tokens, Tokens) for each in tokens.sequences for number in each.ids
    }


def _texts(rows: Sequence[Row]) -> dict[str, list[str]]:
    """What is asked and what is answered, without blanks at the ends."""
    asked, answered = list[str](), list[str]()
    for row in rows:
        turns = turns_of(row.prompt)
        asked += [(turn["content"] or "").strip() for turn in turns if turn["role"] != "assistant"]
        answered += [(turn["content"] or "").strip() for turn in turns if turn["role"] == "assistant"]
        answered += [text.strip() for text in (row.response, row.rejected) if text]
    return {"prompts": asked, "answers": answered}


class Ends:
    """The tokens that end an answer: by the tokenizer, and by the two files that also name them."""

    def __init__(self, tokenizer: Any, folder: Path) -> None:
        self.tokenizer, self.folder = tokenizer, folder
        self.tokens: dict[int, str] = {number: token for token, number in tokenizer.get_vocab().items()}
        self.by_file = {name: found for name in TEXTS
                        if (found := _end_ids(config.read(folder, name) or {}))}  # fmt: skip

    def stops(self, found: Sequence[int]) -> Iterator[CheckResult]:
        """Where sampling stops: at tokens `found` in the chat template, and at those that the folder names."""
        if self.tokenizer.eos_token_id is None:
            return
        named = self.by_file.get("generation_config.json") or self.by_file.get("config.json", [])
        known = [number for number in dict.fromkeys([*found, *named]) if number in self.tokens]
        listed = " or ".join(f"{self.name(number)} ({number})" for number in known)
        yield CheckResult("OK", "model.path", f"answers end with {listed}")

    def name(self, number: int) -> str:
        """Its token; a file may name numbers of any size."""
        return shortened(str(self.tokens.get(number)))

    def beyond_the_model(self, produced: Callable[[], set[int]]) -> Iterator[CheckResult]:
        """Ids that the model has no embedding for. Added tokens that nothing makes may have them: Gemma 3's text
        models have one for images."""
        tokenizer, size = self.tokenizer, (config.read(self.folder) or {}).get("vocab_size")
        if type(size) is not int:
            return
        beyond = {number for number in self.tokens if number >= size}
        if not beyond:
            return
        ends = {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id}
        ordinary = beyond - set(tokenizer.added_tokens_decoder)  # any text may have them
        if made := ordinary or beyond & ends or beyond & produced():
            message = f"the tokenizer of {self.folder} makes ids up to {max(beyond)}, and the model knows {size}"
            message += f" ({self.name(max(made))!r} has {max(made)})"
            yield CheckResult("FAIL", "model.path", message, "use the tokenizer that the model was trained with")

    def results(self) -> Iterator[CheckResult]:
        eos = self.tokenizer.eos_token_id
        if eos is None:
            fix = f"set eos_token in {self.folder / 'tokenizer_config.json'}, such as '<eos>'"
            yield CheckResult("FAIL", "model.path", "its tokenizer has no eos_token, so no answer could end", fix)
            return
        for name in TEXTS:
            stated = (config.read(self.folder, name) or {}).get("eos_token_id")
            right = f"set eos_token_id to {eos} ({self.name(eos)}) in {self.folder / name}"
            ids = self.by_file.get(name, [])
            absent = [number for number in ids if number not in self.tokens]
            if stated not in (None, []) and len(ids) < (len(stated) if isinstance(stated, list) else 1):
                message = f"{name} has eos_token_id {short_repr(stated, 60)}, which is no number of a token"
                yield CheckResult("FAIL", "model.path", message, right)
            elif absent:
                message = f"{name} has eos_token_id {absent[0]:,}, and the tokenizer has no such token"
                yield CheckResult("WARN", "model.path", message, right)
            elif ids and eos not in ids:
                others = ", ".join(f"{self.name(number)} ({number})" for number in ids)
                theirs = f"the tokenizer's eos_token is {self.name(eos)} ({eos})"
                fix = f"{right}, or the tokenizer's eos_token to {others}"
                yield CheckResult("WARN", "model.path", f"{name} ends answers with {others}, and {theirs}", fix)


def _end_ids(node: Mapping[str, Any]) -> list[int]:
    """The eos_token_id of a configuration; none where it names none."""
    named = node.get("eos_token_id")
    return [number for number in (named if isinstance(named, list) else [named]) if type(number) is int]


# ---- chat template


class _Template:
    """What a chat template writes of rows, against what it should. Rows that it cannot write are left out."""

    def __init__(self, encoder: Encoder, rows: Sequence[Row], folder: Path) -> None:
        self.encoder = encoder
        single = folder / "chat_template.jinja"
        self.file = single if single.is_file() else folder / "tokenizer_config.json"
        self.written = list[tuple[Row, list[Turn], str]]()
        for row in rows:
            turns, places = imitated(row, "last")
            turns = turns[: places[0]] if places else turns
            try:
                self.written.append((row, turns, encoder.render(turns, row.template_args, open_answer=True)))
            except Unwritable:  # the count of tokens says so
                continue

    def results(self) -> Iterator[CheckResult]:
        if not self.written:
            return
        yield from self._lost()
        yield from self._unread()
        yield from self._written_twice()
        row, turns, opening = self.written[0]
        try:
            unopened = self.encoder.render(turns, row.template_args)
        except Unwritable:
            return
        answer = self._learned(row, turns, {"role": "assistant", "content": PROBE}) or ""
        before, found, _ = answer.partition(PROBE)
        if found and opening == unopened and before.strip():
            got = "the chat template does not open the assistant's turn: with add_generation_prompt it writes the same"
            fix = f"let {self.file} end with {{% if add_generation_prompt %}}{shortened(before.strip())}{{% endif %}}"
            yield self._warning(got, fix)

    def _lost(self) -> Iterator[CheckResult]:
        """Turns whose text the template does not write."""
        asked = {tuple((turn["role"], turn["content"]) for turn in turns) for _, turns, _ in self.written}
        if len(asked) > 1 and len({opening for *_, opening in self.written}) == 1:
            message = f"the chat template writes the same, {shortened(self.written[0][2])!r}, whatever is asked"
            yield CheckResult("FAIL", "model.path", message, f"fix the chat template in {self.file}")
            return
        answers = [(row, _contents([answer], "assistant"), self._learned(row, before, answer))
                   for row, before, answer in self._answers()]  # fmt: skip
        fix = f"write the assistant's content whole in {self.file} (chat_template), or use data.chat_template=never"
        yield from self._find_omissions(answers, "most of the answers", ", so that is not learnt", fix)
        for role in ("system", "user"):
            of_role = [(row, _contents(turns, role), text) for row, turns, text in self.written]
            fix = f"use rows without {role} turns, or write them in {self.file} (chat_template)"
            yield from self._find_omissions(of_role, f"{role} turns", "", fix)

    def _find_omissions(
        self, written: Sequence[tuple[Row, list[str], str | None]], what: str, so: str, fix: str
    ) -> Iterator[CheckResult]:
        """Of rows, texts of them and what is written of these: whether most words of one are not written."""
        of = [(row, texts, text) for row, texts, text in written if texts and text is not None]
        if lost := [row for row, texts, text in of if not all(_holds(text, content) for content in texts)]:
            yield self._warning(f"the chat template leaves out {what}, {_of(lost, of)}{so}", fix)

    def _answers(self) -> list[tuple[Row, list[Turn], Turn]]:
        """Each row's last answer, behind the turns before it."""
        every = [(row, *imitated(row, "last")) for row, *_ in self.written]
        return [(row, turns[: places[0]], turns[places[0]]) for row, turns, places in every if places]

    def _unread(self) -> Iterator[CheckResult]:
        """What rows or settings give to the template and it does not write."""
        known = set(re.findall(r"\w+", self.encoder.template))
        for name in sorted(self.encoder.data.template_args.keys() - known):
            near = nearest(name, sorted(known))
            fix = f"did you mean {near}?" if near else "leave it out"
            yield CheckResult("WARN", "data.template_args", f"the chat template does not read {name}", fix)
        yield from self._unwritten_args(known)
        if "tools" in known:
            yield from self._unwritten_keys()
        yield from self._unwritten_reasoning(known)

    def _unwritten_args(self, known: set[str]) -> Iterator[CheckResult]:
        every = [(row, imitated(row, "last")[0]) for row, *_ in self.written]
        names = {name for row, _ in every for name in row.template_args}
        for name in ("tools", "tool_calls", *sorted(names - {"tools"})):
            having = [row for row, turns in every if row.template_args.get(name) or any(t.get(name) for t in turns)]
            if having and name not in known:
                fix = "use a model whose template has tools" if name.startswith("tool") else "use one that reads it"
                yield self._warning(
                    f"the chat template does not write {name}, {_of(having, every)}", f"{fix}, or rows without them"
                )

    def _unwritten_keys(self) -> Iterator[CheckResult]:
        lost = {key: row for row, _, text in self.written for key in _lost_keys(row.template_args.get("tools"), text)}
        if lost:
            keys, first = ", ".join(lost), next(iter(lost.values()))
            fix = "write them as it reads them: with type and function, of name, description and parameters"
            yield self._warning(f"the chat template leaves out {keys} of tools, as of {first.where}", fix)

    def _unwritten_reasoning(self, known: set[str]) -> Iterator[CheckResult]:
        thought = [(row, reasoning_in(answer), self._learned(row, before, answer) or "")
                   for row, before, answer in self._answers()]  # fmt: skip
        lost = [row for row, reasoning, text in thought if reasoning not in text]
        if lost:
            thinks = "use 'data.template_args={enable_thinking: true}'"
            fix = thinks if "enable_thinking" in known else "use a model whose template writes it"
            message = f"the chat template leaves out the reasoning of answers, {_of(lost, self.written)}"
            yield self._warning(f"{message}, so that is not learnt", fix)
        empty = [row for row, reasoning, text in thought if not reasoning and _EMPTY_THOUGHT.match(text)]
        if empty:
            off = "use 'data.template_args={enable_thinking: false}', or rows with reasoning"
            fix = off if "enable_thinking" in known else "use rows with reasoning, or a model that does not think"
            yield self._warning(f"an empty thought is learnt before answers, {_of(empty, self.written)}", fix)

    def _learned(self, row: Row, before: list[Turn], answer: Turn) -> str | None:
        """What is written of an answer; None where it cannot be written."""
        try:
            return self.encoder.exchange(before, answer, row.template_args).answer
        except Unwritable:
            return None

    def _written_twice(self) -> Iterator[CheckResult]:
        """Prompts in which a template has been written already."""
        try:
            written = self.encoder.render([{"role": "user", "content": PROBE}], open_answer=True)
        except Unwritable:
            return
        before, _, after = written.partition(PROBE)
        tokens = (token.content for token in self.encoder.tokenizer.added_tokens_decoder.values())
        marks = [mark for mark in (after.strip(), *tokens) if len(mark) > 2 and mark in before + after]
        prompts = [(row, "\n".join(_contents(turns, "user"))) for row, turns, _ in self.written]
        twice = [(row, found[0]) for row, text in prompts if (found := [mark for mark in marks if mark in text])]
        if 2 * len(twice) > len(self.written):
            row, mark = twice[0]
            got = (
                f"the prompts hold {mark!r} (the first is {row.where}), which the chat template writes around them, too"
            )
            yield self._warning(got, "use data.chat_template=never, or prompts without it")

    def _warning(self, message: str, fix: str) -> CheckResult:
        return CheckResult("WARN", "model.path", message, fix)


def _lost_keys(tools: Sequence[Any] | None, text: str) -> list[str]:
    """The keys of tools of which neither name nor text is written."""
    nodes = [tool.get("function", tool) for tool in tools or () if is_call(tool)]
    return [key for node in nodes for key, value in node.items()
            if value and key not in text and not (isinstance(value, str) and value[:20] in text)]  # fmt: skip


def _of(rows: Sequence[Row], every: Sequence[Any]) -> str:
    return f"as of {rows[0].where} ({len(rows)} of {len(every)} rows)"


def _contents(turns: list[Turn], role: str) -> list[str]:
    return [turn["content"] for turn in turns if turn["role"] == role and (turn["content"] or "").strip()]


def _holds(text: str, content: str) -> bool:
    """Whether most words of `content` are in `text`: a template may change its blanks."""
    words = content.split()
    return content.strip() in text or 2 * sum(word in text for word in words) > len(words)
