"""The engine's log-probabilities and entropies against those that TRL and verl make of logits, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("trl")
pytest.importorskip("verl")
import torch
from trl.trainer import utils as trl
from verl.utils import torch_functional as verl

from launcher.engines.torch.model import head

PEERS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "TRL": (trl.selective_log_softmax, trl.entropy_from_logits),
    "verl": (verl.logprobs_from_logits_naive, verl.entropy_from_logits),
}
M, H, V = 13, 5, 50


@pytest.fixture(params=["kept", "in parts"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the backward pass finds of the logits."""
    if request.param != "kept":
        monkeypatch.setattr(head, "KEPT", 0)
    if request.param == "in parts":
        monkeypatch.setattr(head, "LOGITS", 4 * V)


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("wants", ["logp", "entropy"])
@pytest.mark.parametrize("of", ["hidden", "weight"])
def test_out_of_hidden_states(agree, memory, peer, temperature, wants, of) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(M, H, dtype=torch.float64), torch.randn(V, H, dtype=torch.float64)
    token, (logp, entropy) = torch.randint(0, V, (M,)), PEERS[peer]

    def both(at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (at, weight) if of == "hidden" else (hidden, at)

    def theirs(at: torch.Tensor) -> torch.Tensor:
        h, w = both(at)
        logits = h @ w.T / temperature
        return logp(logits, token) if wants == "logp" else entropy(logits)

    agree(
        f"{wants} of hidden states", peer,
        lambda at: getattr(head.token_scores(*both(at), token, temperature), wants), theirs,
        at=hidden if of == "hidden" else weight,
    )  # fmt: skip
