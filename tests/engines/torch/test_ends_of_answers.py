"""SFT on the tokenizer of a base model: held-out answers, transformers' and those of the next run end where ours do.

`make ends` does the same with every template of TRL and axolotl, and with vLLM.
"""

from __future__ import annotations

from pathlib import Path

import ends_of_answers as ends
import pytest

CHATML = (
    "{% for turn in messages %}<|im_start|>{{ turn.role }}\n{{ turn.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ASSISTANT = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
KINDS = {
    "base": (CHATML, "<EOS> <|im_end|>"),
    "several": ("{% for turn in messages %}{{ '<|user|>' if turn.role == 'user' else '<|assistant|>' }}"
                "{% if turn.thinking %}{{ turn.thinking }}<|end|><|assistant|>{% endif %}{{ turn.content }}"
                "{{ '<|return|>' if turn.role == 'assistant' and loop.last else '<|end|>' }}{% endfor %}" + ASSISTANT,
                "<EOS> <|return|>"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_answers_end_where_the_template_ends_them(kind: str, tmp_path: Path) -> None:
    template, stops = KINDS[kind]
    ends.save_model(tmp_path / "model", template)
    rows = ends.write_rows(tmp_path)
    words = [f"model.path={tmp_path}/model", "trainer.total_training_steps=40", *ends.SFT]
    saved, held_out = ends.train(tmp_path, rows, *words)
    assert held_out["val-core/rows/reward/mean@1"] > 0.9  # it was 0 where sampling waited for the tokenizer's EOS
    found = ends.answers(saved, ends.by_transformers)
    assert {*found.stops.split()} == {*stops.split()}
    assert found.good, found.line
    if kind == "base":
        more = ["algorithm=grpo", "sampler.n=4", "trainer.total_training_steps=1", f"model.path={saved}"]
        _, after = ends.train(tmp_path / "next", rows, *more)
        assert after["response_length/clip_ratio"] == 0
