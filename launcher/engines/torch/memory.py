"""Estimate of a run's memory with this engine, before it starts: the peak of each phase, by part.

It models `train/policy` and `train/optimizer` (update), `rollout/decode` (rollout), `model/head`
(logits), `model/packing` (shared prompts), `parallel/sharded`, `model/reference`, `model/load` and `train/save`. Every
sequence is assumed to have maximum length.
"""

from __future__ import annotations

from dataclasses import dataclass

from launcher.engines.torch import Torch
from launcher.engines.torch.model.blocks import KEPT, LOGITS
from launcher.engines.torch.rollout.sampler import Colocated
from launcher.engines.torch.workload import Workload
from launcher.models import activations, size
from launcher.models.activations import Head, Numbers
from launcher.spec.memory import Memory, MemoryPhase, Part, PhaseName
from launcher.spec.model import Architecture
from launcher.spec.run import RunSpec

MIB = 2**20
BAND = {"cpu": 0.15, "cuda": 0.1}
"""Relative error of the estimates. A CPU's malloc keeps a varying amount of freed memory."""
RUNTIME = 400 * MIB
"""Bytes of interpreter, torch and transformers on a CPU, without peft and FSDP2's buffers. Measured."""
PEFT, GATHERING = 15 * MIB, 60 * MIB
TOP = 48 * MIB
"""Free bytes that glibc keeps at the heap's end: up to 64 MiB, measured as this."""
MAPPED = 32 * MIB
"""Tensors of at least this size are mapped separately and returned to the system when freed: no fragmentation."""
HOLES, HOLES_BETWEEN = 0.2, 0.4
"""Fraction of the activations that the heap loses to fragmentation; more where gradients of all weights are allocated
between them. Measured with glibc 2.36 and the settings of `MALLOC`."""
HEAD = Head(block=LOGITS, kept=KEPT)
Parts = dict[Part, int]


def memory(run: RunSpec, engine: Torch) -> Memory | None:
    """Estimated memory of a run; None where the model's dimensions are unknown before it is loaded."""
    if run.model.shape is None:
        return None
    return _Estimate(run, engine, run.model.shape).memory()


@dataclass(frozen=True)
class NetworkBytes:
    """A network's weights, in bytes."""

    weights: int
    trained: int
    """Trained weights (or adapters); their gradients take as much again."""
    moments: int
    whole: int
    """Weights gathered for the whole forward pass under FSDP2: embedding and output layer."""
    layer: int
    """Weights of one layer."""


class _Estimate:
    def __init__(self, run: RunSpec, engine: Torch, shape: Architecture) -> None:
        model, hardware, needs = run.model, run.hardware, run.algorithm.needs
        self.run, self.engine, self.shape, self.work = run, engine, shape, Workload(run)
        self.on_gpu = not hardware.is_cpu
        self.shards = hardware.processes if engine.strategy == "fsdp2" else 1
        self.numbers = Numbers(size.BYTES[model.dtype], engine.mixed_precision, model.lora_rank)
        self.full = Numbers(self.numbers.weights, self.numbers.mixed)
        """Number formats of a network without adapters: the critic."""
        self.policy = _network_bytes(shape, self.numbers)
        self.reference = self.policy.weights if "reference" in needs and not model.lora_rank else 0
        """Bytes of the frozen copy; 0 with adapters, which need none."""
        self.critic: NetworkBytes | None = None
        if "critic" in needs:  # a decoder without its output layer, all of which is trained
            whole = _network_bytes(shape, self.full)
            head = 0 if shape.tie_word_embeddings else shape.vocab_size * shape.hidden_size * self.full.weights
            weights = whole.weights - head
            self.critic = NetworkBytes(weights, weights, 2 * weights, whole.whole - head, whole.layer)
        sampler = run.sampler
        self.extra_memory = sampler.extra_memory(run) if isinstance(sampler, Colocated) else None
        """Memory of a separate sampling program with its copy of the weights; None without one."""

    def memory(self) -> Memory:
        phases: dict[PhaseName, Parts] = {"load": self._load()}
        if self.work.written:
            phases["rollout"] = self._rollout()
        if self.run.algorithm.needs or self.work.scored_before:
            phases["log_prob"] = self._log_prob()
        phases["update"], phases["save"] = self._update(), self._save()
        always: Parts = {"runtime": self._runtime(), "allocator": self._allocator_overhead()}
        found = (
            MemoryPhase(name, {part: round(count) for part, count in (always | parts).items() if count})
            for name, parts in phases.items()
        )
        return Memory(tuple(found), BAND["cuda" if self.on_gpu else "cpu"])

    # ---- resident bytes

    def _is_offloaded(self, what: str) -> bool:
        """Whether it is moved to CPU memory while idle; never on a CPU."""
        return self.on_gpu and what in self.engine.offload

    def _resident(self, *, learnt: bool = True, on_device: str = "") -> Parts:
        """Bytes of the weights and optimizer states of all networks.

        `on_device` names a network that counts even if it is offloaded between phases; `learnt`: after the first
        update, when the optimizer's moments exist.
        """
        policy, critic, n = self.policy, self.critic, self.shards
        location = 0 if self._is_offloaded("weights") and n > 1 else 1
        reference = self.reference if on_device == "reference" or not self._is_offloaded("reference") else 0
        parts: Parts = {
            "weights": location * policy.weights // n,
            "optimizer": location * learnt * policy.moments // n,
            "reference": location * reference // n,
            "reward": 0 if self._is_offloaded("reward") else self.work.reward_bytes,
            "sampler": self.extra_memory.asleep_bytes if self.extra_memory else 0,
        }
        if critic and (on_device == "critic" or not self._is_offloaded("critic")):
            parts["critic"] = location * (critic.weights + learnt * critic.moments) // n
        return parts

    def _gathered_bytes(self, network: NetworkBytes, *, all_layers: bool = False) -> int:
        """Bytes of weights gathered from other processes: embedding, output layer, and two layers or all."""
        if self.shards == 1:
            return 0
        collected = network.weights if all_layers else network.whole + 2 * network.layer
        return collected * self.numbers.computed // self.numbers.weights

    # ---- phases

    def _load(self) -> Parts:
        """Weights are read before they are sharded, and before a critic drops its output layer."""
        parts, a = self._resident(learnt=False), self.shape
        if self.on_gpu:
            return parts
        if self.shards > 1:
            parts["weights"] += self.policy.weights
        if self.critic and not a.tie_word_embeddings:
            parts["critic"] += a.vocab_size * a.hidden_size * self.full.weights
        parts["weights"] += self.work.file_bytes
        return parts

    def _rollout(self) -> Parts:
        a, w, width = self.shape, self.work, self.numbers.computed
        parts = self._resident()
        if self.extra_memory:
            colocated: Parts = {**parts, "sampler": self.extra_memory.awake_bytes, "batch": w.batch_bytes}
            separate: Parts = {"sampler": self.extra_memory.separate_bytes}  # in a process that holds nothing else
            return max(colocated, separate, key=lambda one: sum(one.values()))
        per_token = size.kv_bytes_per_token(a, width)
        cached = w.cached_tokens * w.written if self.on_gpu else w.longest * w.written
        layer = per_token // a.num_hidden_layers * w.written * w.longest
        shared = a.num_attention_heads // a.num_key_value_heads
        repeated = layer * shared if shared > 1 else 0  # keys and values for the heads that share them
        earlier = 0 if self.on_gpu else w.longest * w.waiting  # on a GPU they are in the host's memory
        parts["kv_cache"] = per_token * (cached + earlier) + max(layer, repeated)
        parts["logits"] = w.written * a.vocab_size * (width + 3 * 4)
        parts["activations"] = (
            w.prefilled * (w.longest if w.waiting else w.prompt) * activations.forward_working(a, self.numbers)
        )
        parts["weights"] += self._gathered_bytes(self.policy, all_layers=True) + self._autocast_copy(self.policy)
        parts["batch"] = w.batch_bytes
        return parts

    def _log_prob(self) -> Parts:
        """Forward passes without gradients, of the reference, the critic and the policy in turn."""
        a, w = self.shape, self.work
        parts = self._resident(on_device="reference" if self.reference else "critic")
        parts["activations"] = w.tokens * (activations.forward_working(a, self.full) + self._attention_extra(False))
        parts["logits"] = activations.logits(a, w.predicted, self.numbers, HEAD, "scores")
        parts["weights"] += self._gathered_bytes(self.policy) + self._autocast_copy(self.policy)
        parts["batch"] = w.batch_bytes
        return parts

    def _update(self) -> Parts:
        """The update of the policy or of the critic, whichever needs more."""
        logits = activations.logits(
            self.shape, self.work.predicted, self.numbers, HEAD,
            "explores" if self.run.algorithm.entropy_coeff else "learns" if self.work.sampled else "imitates",
        )  # fmt: skip
        candidates = [self._update_peak(self.policy, self.numbers, logits)]
        if self.critic:
            candidates.append(self._update_peak(self.critic, self.full, 0, on_device="critic"))
        return max(candidates, key=lambda parts: sum(parts.values()))

    def _update_peak(self, network: NetworkBytes, numbers: Numbers, logits: int, on_device: str = "") -> Parts:
        """Peak of a forward and backward pass."""
        a, w = self.shape, self.work
        parts = self._resident(on_device=on_device)
        parts["weights"] += self._gathered_bytes(network) + self._autocast_copy(network)
        parts["batch"] = w.batch_bytes
        layer = w.tokens * (activations.saved(a, numbers) + self._attention_extra(True))
        working = w.tokens * activations.backward_working(a, numbers)
        layer_inputs = w.tokens * activations.layer_input(a, numbers)
        layers = a.num_hidden_layers
        at_head, at_layer = layer * layers, layer * layers + working
        if self.run.model.enable_gradient_checkpointing:
            at_head, at_layer = layer_inputs * layers, layer_inputs * layers + layer + working
        head_size = 0 if network is self.critic or numbers.rank else a.vocab_size * a.hidden_size
        accumulated = network.trained // self.shards if w.parts > 1 else 0  # gradients of earlier micro-batches
        hidden = 2 * w.predicted * a.hidden_size * numbers.weights
        head_gradients = accumulated + head_size * max(4, numbers.weights)
        head: Parts = {"activations": at_head + hidden, "logits": logits, "gradients": head_gradients}
        first = head_size * numbers.weights + network.layer if not w.parts > 1 else 0
        body: Parts = {"activations": at_layer + layer_inputs, "gradients": accumulated + first}
        step: Parts = {"gradients": network.trained // self.shards + (network.layer if self.shards > 1 else 0)}
        fullest = max((head, body, step), key=lambda held: sum(held.values()))
        parts["allocator"] = self._allocator_overhead(max(at_head, at_layer), bool(numbers.rank))
        return parts | fullest

    def _attention_extra(self, learning: bool) -> int:
        """Bytes per token for repeating keys and values of shared prompts."""
        w, a = self.work, self.shape
        if not w.shares_prompts or not w.tokens:
            return 0
        attended = 2 * a.num_attention_heads * a.head_dim * self.numbers.computed
        repeated = w.rows * w.prompt * attended
        masks = w.response * w.longest * self.numbers.computed
        return (repeated + masks) // w.tokens if learning else 2 * repeated // w.tokens

    def _autocast_copy(self, network: NetworkBytes) -> int:
        """Autocast caches a bfloat16 copy of the weights during a pass; FSDP2 gathers them in bfloat16."""
        return network.weights // 2 if self.numbers.mixed and self.shards == 1 else 0

    def _save(self) -> Parts:
        """Rank 0 gathers each tensor into CPU memory; files are written from there without a copy."""
        parts = self._resident()
        if self.shards > 1 and self.on_gpu:
            parts["weights"] += self.policy.whole
        elif self.shards > 1:
            networks = [network for network in (self.policy, self.critic) if network]
            parts["weights"] += sum(network.weights + network.moments for network in networks)
        return parts

    # ---- what is not tensors

    def _runtime(self) -> int:
        """Interpreter and libraries on a CPU, context and workspaces on a GPU: measured."""
        if self.on_gpu:
            return 0
        return RUNTIME + (PEFT if self.numbers.rank else 0) + (GATHERING if self.shards > 1 else 0)

    def _allocator_overhead(self, activations: int = 0, adapters: bool = False) -> int:
        """Bytes that a CPU's malloc holds beyond this many bytes of activations."""
        if self.on_gpu:
            return 0
        holes = HOLES if adapters else HOLES_BETWEEN
        tensor_bytes = self.work.tokens * self.shape.hidden_size * self.numbers.computed
        return TOP + int(holes * activations * min(MAPPED / tensor_bytes, 1))


def _network_bytes(a: Architecture, numbers: Numbers) -> NetworkBytes:
    count = size.parameters(a)
    outside = a.vocab_size * a.hidden_size * (1 if a.tie_word_embeddings else 2) + a.hidden_size
    layer = (count - outside) // a.num_hidden_layers
    base, adapters = count * numbers.weights, size.lora_parameters(a, numbers.rank) * numbers.adapters
    trained = adapters if numbers.rank else base
    return NetworkBytes(base + adapters, trained, 2 * trained, outside * numbers.weights, layer * numbers.weights)
