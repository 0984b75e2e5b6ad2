"""Runs a plan's step program on the CPU: each operation is bound once to its buffers, its weights and a kernel.

Activations are fp32. Logits and the products of decode rows stream the weights through our kernel, once for every
group of rows, and are never rounded to 16 bits: they are the same in every batch. A prefill chunk of more rows than one
group is multiplied by torch, which comes near the arithmetic peak and reaches half of the bandwidth at one row. Where
the machine multiplies bf16, that rounds outputs to bf16, as every bf16 reference does: in its last bits the KV of a
prompt depends on how it was cut into chunks.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from dualpace.engine.kernels import Kernels
from dualpace.model.weights import DTYPES
from dualpace.plan import abi
from dualpace.plan.memory import FP32_BYTES, WIDENED_ELEMENTS
from dualpace.plan.plan import Plan
from dualpace.plan.program import Op, buffers, step_program
from dualpace.plan.rope import inverse_frequencies

Call = Callable[[], Any]
# What a call returns that has to be made again once blocks have come from host memory.
WAITS = object()


class Executor:
    """One lane's buffers, KV pools and bound program.

    `step` is the address of the lane's StepBuffers; `sample` is given the address of the logits, [samples, vocab] fp32.
    """

    def __init__(
        self,
        plan: Plan,
        weights: Mapping[str, torch.Tensor],
        kernels: Kernels,
        step: int,
        sample: Callable[[int], object] = lambda logits: None,
        beat: Call = lambda: None,
        pools: list[torch.Tensor] | None = None,
    ) -> None:
        """Allocate what `plan` says and bind its step program; `weights` must have every name of it.

        `beat` is called after each operation of a step, however long the step takes in all. `pools` are those of
        another lane.
        """
        model = plan.model
        tokens = max(program.tokens for program in plan.schedule.programs)
        self._plan = plan
        self._weights = weights
        self._kernels = kernels
        self._step = step
        self._sample_logits = sample
        self._beat = beat
        self._batch: Any = abi.view("StepBuffers", plan).from_address(step)
        self._leading = {name: leading for name, (leading, _) in buffers(model).items()}
        rows = {"T": tokens, "S": max(program.samples for program in plan.schedule.programs)}
        self.buffers = {name: torch.empty(rows[lead], size) for name, (lead, size) in buffers(model).items()}
        self.pools = pools or [self._pool(layer) for layer in range(model.layers)]
        self._workspace = torch.empty(kernels.workspace_bytes, dtype=torch.uint8)
        self._frequencies = [torch.tensor(inverse_frequencies(g.rope, model.head_dim)) for g in model.groups]
        self._angles = [torch.empty(tokens, model.head_dim) for _ in model.groups]
        self._multiplies = {torch.float32} | ({torch.bfloat16} if kernels.isa in ("v4_bf16", "v4_amx") else set())
        self._tokens = self._decoding = self._samples = 0
        self._calls = [*self._prepare(), *(self._bind(op) for op in step_program(model))]

    def run(self, tokens: int, samples: int) -> None:
        """Execute the step that the StepBuffers describe: `tokens` tokens in all, logits of `samples` of them."""
        for _ in self.advance(tokens, samples):
            pass

    def advance(self, tokens: int, samples: int) -> Iterator[None]:
        """Execute the step as `run` does, and yield as often as it has to wait."""
        self._tokens, self._samples = tokens, samples
        self._decoding = self._leading_decode_rows()
        for call in self._calls:
            while call() is WAITS:
                yield
            self._beat()

    def _leading_decode_rows(self) -> int:
        """How many rows of one token the step begins with; the scheduler puts all of them there."""
        rows, begin = self._batch.rows, self._batch.query_begin
        return next((row for row in range(rows) if begin[row + 1] != row + 1), rows)

    def _pool(self, layer: int) -> torch.Tensor:
        """KV of one layer: [page, K or V, KV head, token, element]."""
        model = self._plan.model
        pages = self._plan.pages[model.group_of(layer)].pages
        shape = (pages, 2, model.kv_heads, self._plan.attention.page_size, model.head_dim)
        return torch.empty(shape, dtype=DTYPES[model.dtype])

    def _prepare(self) -> list[Call]:
        """What a step computes once for all layers of a group."""
        return [
            partial(
                self._kernels.dp_rope_angles,
                self._step,
                frequencies.data_ptr(),
                group.rope.attention_factor,
                angles.data_ptr(),
            )
            for group, frequencies, angles in zip(self._plan.model.groups, self._frequencies, self._angles, strict=True)
        ]

    def _bind(self, op: Op) -> Call:
        bind: dict[str, Callable[[Op], Call]] = {
            "embed": self._embed,
            "norm": self._norm,
            "add_norm": self._add_norm,
            "linear": self._linear,
            "rope_append": self._rope_append,
            "attention": self._attention,
            "gate": self._gate,
            "gather": self._gather,
            "sample": self._sample,
        }
        return bind[op.kind](op)

    def _address(self, name: str) -> int:
        return self.buffers[name].data_ptr()

    def _weight_addresses(self, op: Op, count: int) -> list[int | None]:
        """Addresses of the operation's weights, filled up with null to `count`."""
        addresses = [self._weights[name].data_ptr() for name in op.weights]
        return [*addresses, *[None] * (count - len(addresses))]

    def _embed(self, op: Op) -> Call:
        return partial(self._kernels.dp_embed, *self._weight_addresses(op, 1), self._step, self._address(op.outputs[0]))

    def _norm(self, op: Op) -> Call:
        norm, *operands = self._kernels.dp_norm, *self._weight_addresses(op, 1)
        x, y = self._address(op.inputs[0]), self._address(op.outputs[0])
        return lambda: norm(*operands, x, y, self._tokens)

    def _add_norm(self, op: Op) -> Call:
        add_norm, *operands = self._kernels.dp_add_norm, *self._weight_addresses(op, 1)
        residual, y, x = map(self._address, (*op.inputs, op.outputs[1]))
        return lambda: add_norm(*operands, residual, y, x, self._tokens)

    def _linear(self, op: Op) -> Call:
        weight = self._weights[op.weights[0]]
        bias = self._weights[op.weights[1]] if len(op.weights) > 1 else None
        x, y = self.buffers[op.inputs[0]], self.buffers[op.outputs[0]]
        linear, group = self._kernels.dp_linear, self._kernels.streamed_rows
        weights, workspace = self._weight_addresses(op, 2), self._workspace.data_ptr()
        first_x, first_y = x.data_ptr(), y.data_ptr()
        per_sample = self._leading[op.inputs[0]] == "S"
        size, out = x.shape[1], y.shape[1]

        def stream(begin: int, end: int) -> None:
            for row in range(begin, end, group):
                at_x, at_y = first_x + row * size * FP32_BYTES, first_y + row * out * FP32_BYTES
                linear(*weights, at_x, at_y, workspace, size, out, min(group, end - row))

        def call() -> None:
            if per_sample:
                stream(0, self._samples)
                return
            decoding, tokens = self._decoding, self._tokens
            stream(0, decoding)
            if tokens - decoding <= group:
                stream(decoding, tokens)
            else:
                self._multiply(x[decoding:tokens], weight, bias, y[decoding:tokens])

        return call

    def _multiply(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor) -> None:
        """Write x @ weight.T + bias to `y`, for many rows; through bf16 where the machine multiplies that."""
        if weight.dtype in self._multiplies:
            y.copy_(torch.nn.functional.linear(x.to(weight.dtype), weight, bias))
            return
        outs = max(WIDENED_ELEMENTS // weight.shape[1], 1)
        for begin in range(0, weight.shape[0], outs):
            y[:, begin : begin + outs] = x @ weight[begin : begin + outs].float().t()
            self._beat()
        if bias is not None:
            y += bias

    def _rope_append(self, op: Op) -> Call:
        group = self._plan.model.group_of(op.layer)
        return partial(
            self._kernels.dp_rope_append,
            self._step,
            group,
            self._angles[group].data_ptr(),
            *self._weight_addresses(op, 2),
            self._address(op.inputs[0]),
            self.pools[op.layer].data_ptr(),
        )

    def _attention(self, op: Op) -> Call:
        return partial(
            self._kernels.dp_attention,
            self._step,
            self._plan.model.group_of(op.layer),
            self._address(op.inputs[0]),
            self.pools[op.layer].data_ptr(),
            self._workspace.data_ptr(),
            self._address(op.outputs[0]),
        )

    def _gate(self, op: Op) -> Call:
        gate = self._kernels.dp_gate
        gate_up, act = self._address(op.inputs[0]), self._address(op.outputs[0])
        return lambda: gate(gate_up, act, self._tokens)

    def _gather(self, op: Op) -> Call:
        return partial(self._kernels.dp_gather, self._address(op.inputs[0]), self._step, self._address(op.outputs[0]))

    def _sample(self, op: Op) -> Call:
        return partial(self._sample_logits, self._address(op.inputs[0]))
