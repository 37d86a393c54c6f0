"""Facts about the single tokens of logged answers: what the file says, after going back too, and to a program that
reads it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch
from families import tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from launcher.core.events import Alert, Step, TrainingGroup
from launcher.engines.torch.train.batching import collate
from launcher.engines.torch.train.tokens import TokenLog
from launcher.server.tokens import NAME, answer_lines, tokens_in
from launcher.spec.episode import Episode, Turn

SMALL = ["model=tiny", "model.hidden_size=16", "model.num_hidden_layers=1", "model.intermediate_size=32",
         "data=reverse", "data.n_prompts=16", "data.n_val=4", "data.train_batch_size=4", "sampler.n=2",
         "algorithm=grpo", "reward=length", "reward.high=3", "trainer.total_training_steps=4",
         "trainer.save_freq=2", "trainer.log_groups=3", "trainer.log_groups_freq=1"]  # fmt: skip
TWICE = ["trainer.ppo_epochs=2"]


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / NAME).read_text().splitlines()]


@pytest.mark.parametrize("words", [[], TWICE], ids=["on-policy", "off-policy"])
def test_each_logged_answer_has_its_tokens_once_more_after_going_back(words: list[str], tmp_path: Path) -> None:
    groups = [event for event in jobs.run(tmp_path, [*SMALL, *words]) if isinstance(event, TrainingGroup)]
    lines = lines_of(tmp_path)
    assert [(line["step"], line["group"], line["answer"]) for line in lines] == [
        (group.step, group.group, answer) for group in groups for answer in range(2)
    ]
    assert {line["step"] for line in lines} == {1, 2, 3, 4} and {line["group"] for line in lines} == {1, 2, 3}
    for line in lines:
        group = next(one for one in groups if (one.step, one.group) == (line["step"], line["group"]))
        assert "".join(line["texts"]).removesuffix("<eos>") == group.responses[line["answer"]]
        assert line["mask"] == [1] * len(line["ids"]) and line["sampler_log_probs"] is None
        assert sum(line["advantages"]) / len(line["ids"]) == pytest.approx(group.advantages[line["answer"]], rel=1e-4)
        assert all(-20 < log_prob < 0 for log_prob in line["log_probs"])
    assert any(line["advantages"][0] for line in lines)

    with (tmp_path / NAME).open("a") as file:
        file.write('{"step":3,"gro')  # a kill
    jobs.run(tmp_path, [*SMALL, *words], start=2)
    again = (tmp_path / NAME).read_text().splitlines()[len(lines) + 1 :]
    assert list(map(json.loads, again)) == [line for line in lines if line["step"] > 2]
    for line in lines:
        tokens = tokens_in(answer_lines(tmp_path / NAME, line["step"], line["group"])[line["answer"]])
        assert [one["text"] for one in tokens] == line["texts"] and {one["ratio"] for one in tokens} == {None}
        assert [one["log_prob"] for one in tokens] == line["log_probs"]


def test_nothing_is_written_where_no_groups_are_logged_and_what_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    assert jobs.run(tmp_path, [*SMALL, "trainer.log_groups=0"]) and not (tmp_path / "samples").exists()
    (tmp_path / "samples").write_text("in the way")
    events = jobs.run(tmp_path, [*SMALL, "trainer.total_training_steps=1"])
    assert [event.step for event in events if isinstance(event, Step)][-1] == 1
    assert any("tokens of logged answers are not written: " in one.text for one in events if isinstance(one, Alert))


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_log_probabilities_are_those_of_before_the_update(epochs: int) -> None:
    policy = jobs.policy_for("grpo", "float64", jobs.Limits(3))
    old = policy.annotate(jobs.batch_for(policy.algorithm, policy.model, 1), jobs.Clock(), on_policy=False).old
    made = jobs.prepared(policy, on_policy=epochs == 1)
    found = policy.update(made, 1).log_probs
    assert (found is None) == (epochs == 2)
    torch.testing.assert_close(found if epochs == 1 else made.old, old)


def test_a_token_that_is_not_learned_from_is_masked_and_no_divergence(tmp_path: Path) -> None:
    """An answer of three turns, the second of a tool; and a long one without a score."""
    model = tiny()
    turns = [Turn([20, 21], logp=[-1.0, -2.0]), Turn([22], "data"), Turn([23, 1], stop="end", logp=[-3.0, -4.0])]
    episodes = [Episode([9] * 3, tuple(turns), 0), Episode([9], (Turn([24] * 12, logp=[-1.0] * 12),), 1)]
    batch = collate(episodes, model)
    batch.mask[1] = 0
    log_probs = batch.rollout + torch.tensor([[0.5], [2.0]])
    batch = replace(batch, old=log_probs, advantage=torch.full_like(log_probs, torch.nan))
    TokenLog(tmp_path / NAME, model.tokenizer).write(7, [episodes[:1], episodes[1:]], batch, 10)
    tokens, unscored = (tokens_in(answer_lines(tmp_path / NAME, 7, group)[0]) for group in (1, 2))
    assert [one["learns"] for one in tokens] == [True, True, False, True, True]
    assert [one["sampler_log_prob"] for one in tokens] == [-1.0, -2.0, None, -3.0, -4.0]
    assert [one["ratio"] for one in tokens] == [pytest.approx(1.64872, rel=1e-4) if learns else None
                                               for learns in (1, 1, 0, 1, 1)]  # fmt: skip
    assert [one["advantage"] for one in tokens] == ["NaN", "NaN", None, "NaN", "NaN"]
    letters = [model.tokenizer.decode([24])] * 5
    assert [one["text"] for one in unscored] == [*letters, " [... 2 tokens ...] ", *letters]
    assert not any(one["learns"] or one["ratio"] or one["log_prob"] for one in unscored)


def test_what_is_secret_in_a_text_is_not_kept_token_by_token(tmp_path: Path) -> None:
    model, texts = tiny(), ("it is password=k3j9x8q2w7z5v1", "no")
    episodes = [Episode([9], (Turn(model.tokenizer(text).input_ids),), 0) for text in texts]
    TokenLog(tmp_path / NAME, model.tokenizer).write(1, [episodes], collate(episodes, model), 100)
    assert [line["answer"] for line in lines_of(tmp_path)] == [1]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(codec="utf-8"), max_size=12))
def test_the_texts_of_the_tokens_are_the_text(text: str) -> None:
    """Of a vocabulary of single bytes, so that most characters are several tokens."""
    vocabulary = {letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    ids = tokenizer(text).input_ids
    found = TokenLog(Path(), tokenizer).texts(ids)
    assert len(found) == len(ids) == len(text.encode()) and "".join(found) == text
