"""A rollout for verl 0.9.1 that samples with transformers on a CPU: `actor_rollout_ref.rollout.name=hfcpu`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ray
import torch
from transformers import AutoModelForCausalLM
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

MOST_REPLICAS = 64


def server_name(rank: int) -> str:
    return f"hfcpu_server_{rank}"


class CpuServer:
    """The inference server of one replica."""

    def __init__(self, path: str, config: Any, rank: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(int(config.seed) + rank)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.config, self.global_steps = config, 0

    async def set_weights(self, weights: dict[str, torch.Tensor], global_steps: int) -> int:
        self.model.load_state_dict(weights, strict=False)  # tied weights come once
        self.global_steps = global_steps
        return len(weights)

    async def nothing(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}

    wake_up = sleep = abort_all_requests = resume_generation = clear_kv_cache = nothing
    release_kv_cache = resume_kv_cache = start_profile = stop_profile = wait_for_requests_to_drain = nothing

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        with torch.no_grad():
            return self._generate(prompt_ids, dict(sampling_params))

    def _generate(self, prompt_ids: list[int], given: dict[str, Any]) -> TokenOutput:
        temperature = float(given.get("temperature", 1.0))
        ends = self.model.generation_config.eos_token_id
        ends = set(ends if isinstance(ends, list) else [ends])
        tokens, past, answer, logprobs = torch.tensor([list(prompt_ids)]), None, list[int](), list[float]()
        for _ in range(int(given.get("max_tokens", self.config.response_length))):
            out = self.model(tokens, past_key_values=past, use_cache=True)
            past, logits = out.past_key_values, out.logits[0, -1].float()  # [V]
            logp = torch.log_softmax(logits / temperature if temperature > 0 else logits, -1)
            token = int(torch.multinomial(logp.exp(), 1) if temperature > 0 else logp.argmax())
            answer.append(token)
            logprobs.append(float(logp[token]))
            tokens = torch.tensor([[token]])
            if token in ends:
                break
        extra = {"global_steps": self.global_steps, "num_cached_tokens": 0}
        return TokenOutput(
            token_ids=answer, log_probs=logprobs if given.get("logprobs") else None, stop_reason="completed",
            num_preempted=0, extra_fields=extra,
        )  # fmt: skip


class CpuReplica(RolloutReplica):
    async def launch_servers(self) -> None:
        options = {"name": server_name(self.replica_rank), "num_cpus": 0, "max_concurrency": 4}
        server = ray.remote(CpuServer).options(**options).remote(self.model_config.path, self.config, self.replica_rank)
        self.servers, self._server_handle = [server], server
        self._server_address = f"127.0.0.1:{9000 + self.replica_rank}"
        await server.nothing.remote()


class CpuRollout(BaseRollout):
    """Sends the trainer's weights to the servers."""

    async def resume(self, tags: Any) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], wire_format: str = "named_tensors",
        global_steps: int | None = None, **_: Any,
    ) -> None:  # fmt: skip
        whole = {
            name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().float().cpu().clone()
            for name, tensor in weights
        }
        if torch.distributed.get_rank():
            return
        for rank in range(MOST_REPLICAS):
            try:
                server = ray.get_actor(server_name(rank))
            except ValueError:
                return
            ray.get(server.set_weights.remote(whole, global_steps))


_ROLLOUT_REGISTRY["hfcpu", "async"] = "verl_cpu_rollout.CpuRollout"
RolloutReplicaRegistry.register("hfcpu", lambda: CpuReplica)
