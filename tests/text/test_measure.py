"""What is found of a tokenizer and a chat template, on both sides of each bound."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import launch_model
import pytest
import yaml

from launcher.data.files import Files
from launcher.models.pretrained import Pretrained
from launcher.spec.data import Message, Row
from launcher.text import measure
from launcher.text.encoder import Encoder, Unwritable
from launcher.text.tokenizer import character_tokenizer

CASES = yaml.safe_load((Path(__file__).parent / "measure.yaml").read_text(encoding="utf-8"))


def measured(folder: Path, given: Mapping[str, Any], **data: Any) -> measure.Measure:
    launch_model.Model(**given).save(folder)
    return measure.Measure(Pretrained(path=str(folder)), Files(**data))


def row_of(node: Mapping[str, Any], number: int) -> Row:
    asked = node.get("prompt", "1+1=?")
    prompt = asked if isinstance(asked, str) else tuple(Message(**turn) for turn in asked)
    return Row(f"t:{number}", prompt, **{"response": "2"} | {name: node[name] for name in node if name != "prompt"})


@pytest.mark.parametrize("name", CASES)
def test_what_is_found(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    asked = measured(tmp_path / "small", case.get("model", {}), **case.get("data", {}))
    rows = [row_of(node, number) for number, node in enumerate(case.get("rows", [{}] * 4), start=1)]
    found = [f"{each.level} {each.message}" for each in asked.facts(rows) if each.level != "OK"]
    expected = [line.replace("FOLDER", str(tmp_path / "small")) for line in case.get("found", [])]
    assert len(found) == len(expected) and all(line in one for line, one in zip(expected, found, strict=True)), found


def test_what_is_counted(tmp_path: Path) -> None:
    asked = measured(tmp_path / "small", {})
    assert (asked.tokens("1+1=?"), asked.templated()) == (5, True)
    assert asked.lengths([Row("t:1", "1+1=?", "2")], "answers") == [(7, 2, 1)]
    assert not measured(tmp_path / "other", {"template": False}).templated()


@pytest.mark.parametrize(("more", "refused"), [(2**20, False), (2**20 + 9, True)])
def test_how_much_a_template_may_add_to_what_is_given(more: int, refused: bool, tmp_path: Path) -> None:
    """8 times what a turn has, `user` and one letter here, and 2**20 characters."""
    asked = measured(tmp_path / "small", {"template": "{{ 'a' * " + str(more + 40) + " }}"})
    turns = [{"role": "user", "content": "a"}]
    if refused:
        with pytest.raises(Unwritable, match=r"the chat template writes 1,048,625 characters for 5"):
            asked.encoder.render(turns)
    else:
        assert len(asked.encoder.render(turns)) == more + 40
    assert asked.encoder.allowed == pytest.approx(2.0 + 0.005 + 5e-6, abs=1e-9)
    assert 0 < asked.encoder.spent < 2


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("abxx", "50%"),
        ("xxx", "100%"),
        ("ab x x", "50%"),
        ("ab" * 49 + "x", "1%"),
        ("ab" * 50 + "x", None),
        ("", None),
    ],
)
def test_the_share_of_a_text_that_has_tokens(text: str, share: str | None) -> None:
    encoder = Encoder(character_tokenizer("ab "), Files())
    found = [*measure.unknown(encoder, [Row("t:1", "a", text)])]
    assert [each.message.split()[0] for each in found] == ([share] if share else [])
    assert all("of the text of the answers" in each.message for each in found)


def test_ids_that_training_takes_are_those_of_both_answers(tmp_path: Path) -> None:
    asked = measured(tmp_path / "small", {})
    letters = asked.encoder.tokenizer.get_vocab()
    ids = measure._trained_ids(asked.encoder, [Row("t:1", "a", "b", rejected="c")])
    assert {letters[sign] for sign in ("a", "b", "c", "<|user|>", "<|assistant|>", "<eos>")} == ids
    assert letters["c"] not in measure._trained_ids(asked.encoder, [Row("t:1", "a", "b")])
