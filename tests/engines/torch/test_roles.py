"""Models that stand beside the policy: critics, and reward models that score."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jobs
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForSequenceClassification

from launcher.core.problems import Problems
from launcher.engines.torch.model.load import load_critic
from launcher.engines.torch.model.scorer import ModelScorer, load_reward_models
from launcher.models.scratch import Scratch
from launcher.rewards.combined import Weighted
from launcher.rewards.exact import Exact
from launcher.rewards.model import RewardModel
from launcher.spec.reward import Answer, score_safely
from launcher.text.tokenizer import character_tokenizer

CPU = torch.device("cpu")
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789>+-*/=., :\n"
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


# ---- critic


def test_critic_values_start_at_zero_and_precede_each_token() -> None:
    made = load_critic(Scratch(hidden_size=16, intermediate_size=24, num_hidden_layers=1, dtype="float64"), 0, CPU)
    batch = jobs.rollouts_of(jobs.small("float64"), 1)
    assert (made(made.pack(batch)) == 0).all()
    jobs.draw(made, 0.3, 2)
    made.head.bias.data.fill_(0.25)
    with torch.no_grad():
        found = made(made.pack(batch))
        for row in range(len(batch)):
            length = int(batch.length[row])
            hidden = made.module(input_ids=batch.tokens[row : row + 1, :length]).last_hidden_state[0]
            value = made.head(hidden)[:-1, 0] * batch.mask[row, 1:length]
            assert (found[row, 1:length] - value).abs().max() <= 1e-12
    assert (found[batch.mask == 0] == 0).all()


# ---- reward models


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A classifier with random weights in a folder; its one output reads the last token before padding."""

    def make(template: str | None = None, outputs: int = 1) -> Path:
        folder = tmp_path_factory.mktemp("judge")
        tokenizer = character_tokenizer(ALPHABET)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(folder)
        config = Qwen3Config(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=64, num_labels=outputs,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        torch.manual_seed(0)
        Qwen3ForSequenceClassification(config).save_pretrained(folder)
        return folder

    return make


ANSWERS = [
    Answer("42", prompt="6*7="),
    Answer("a long answer, of many words", prompt="say something: "),
    Answer("", prompt="1"),
    Answer("yes", prompt=(("system", "be brief"), ("user", "is it so?"), ("assistant", "no"), ("user", "why"))),
    Answer("x" * 90, prompt="longer than the model's positions: "),
]


def single(folder: Path, text: str, longest: int | None) -> float:
    """Plain transformers, one text at a time."""
    model = Qwen3ForSequenceClassification.from_pretrained(folder).eval()
    ids = character_tokenizer(ALPHABET)(text).input_ids
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids[-longest:] if longest else ids])).logits[0, 0].item()


@pytest.mark.parametrize(("template", "longest", "size"), [(None, None, 1), (None, 20, 2), (TEMPLATE, None, 16)])
def test_scores_are_what_each_answer_alone_gets(
    template: str | None, longest: int | None, size: int, reward_model: Callable[..., Path]
) -> None:
    folder = reward_model(template)
    scorer = ModelScorer(RewardModel(path=str(folder), batch_size=size, max_length=longest), CPU)
    found = scorer.score(ANSWERS)
    for answer, score in zip(ANSWERS, found, strict=True):
        turns = [("user", answer.prompt)] if isinstance(answer.prompt, str) else list(answer.prompt)
        text = "".join(f"{role}: {output}\n" for role, output in [*turns, ("assistant", answer.response)])
        if template is None:
            text = "".join(output for _, output in turns) + answer.response
        assert scorer.text(answer) == text
        assert score == pytest.approx(single(folder, text, longest or 64), abs=1e-5)
    assert len({round(score, 4) for score in found}) > 3


def test_a_model_among_other_rewards_is_loaded_and_told_apart(reward_model: Callable[..., Path]) -> None:
    """S2-34: what rules gave and what the model gave."""
    folder = reward_model()
    parts = {"right": Exact(), "judge": RewardModel(path=str(folder))}
    reward = load_reward_models(Weighted(parts=parts, weights={"right": 2.0}), CPU)
    answer = Answer("42", "42", prompt="6*7=")
    found, model_score = score_safely(reward, [answer]), single(folder, "6*7=42", None)
    assert found.total == [pytest.approx(2.0 + model_score)]
    assert found.parts["rule_based"] == [2.0] and found.parts["rm_based"] == [pytest.approx(model_score)]
    assert load_reward_models(Exact(), CPU) == Exact()


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Problems, match=r"^reward\.path: '.*' cannot be loaded: "):
        ModelScorer(RewardModel(path=str(tmp_path)), CPU)
