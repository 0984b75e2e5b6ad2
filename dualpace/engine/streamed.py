"""Step programs of few rows: our own products, which stream the weights and do what follows them on the way.

As outputs come they are added to the residual, activated, or rotated and appended to the KV. Norms are deferred where
that rounds nothing that was not rounded before: cuda/linear_epilogue.cuh.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch

from dualpace.engine.device import Argument, Cubin
from dualpace.plan.plan import Model, Program
from dualpace.plan.program import STREAMED_ROWS, Op, defers_norms, rotates

Launch = Callable[[Program], None]


class StreamedProducts:
    """Binds the operations of one lane's step to our products, for the programs that stream them."""

    def __init__(
        self,
        model: Model,
        weights: Mapping[str, torch.Tensor],
        cubin: Cubin,
        step: torch.Tensor,
        buffers: Mapping[str, torch.Tensor],
        rotations: torch.Tensor,
        pools: Sequence[torch.Tensor],
    ) -> None:
        """`rotations` are by layer group, `pools` by layer."""
        self._model, self._weights, self._cubin, self._step = model, weights, cubin, step
        self._buffers, self._rotations, self._pools = buffers, rotations, pools
        self._squares = None
        if defers_norms(model):
            self._squares = torch.zeros(STREAMED_ROWS, model.hidden // 16, device="cuda")

    def launches(self, ops: Iterable[Op], bind: Callable[[Op], Launch]) -> Iterator[Launch]:
        """Launches of `ops`; `bind` makes those of operations that are no part of a product."""
        rest = iter(ops)
        for op in rest:
            if op.kind == "linear":
                yield from self._product(op, rest, bind)
            elif op.kind == "norm":
                yield self._norm(op.weights[0])
            elif op.kind != "gather":  # the head reads the sampled rows where they are
                yield bind(op)

    def _product(self, op: Op, rest: Iterator[Op], bind: Callable[[Op], Launch]) -> Iterator[Launch]:
        """The product `op`, with those of the operations after it that it does not do itself."""
        model, buffers = self._model, self._buffers
        name = op.weights[0].rpartition(".")[2]
        if name == "qkv":
            append = next(rest)
            bias = self._weights[op.weights[1]] if len(op.weights) > 1 else None
            group = model.group_of(op.layer)
            rotated = (group, self._rotations[group], buffers["qkv"], self._pools[op.layer])
            to = rotated if rotates(model) else (buffers["qkv"],)
            yield self._launch(name, op, buffers["x"], self._squares, bias, *to)
            if not rotates(model):
                yield bind(append)
        elif name == "gate_up":
            next(rest)
            yield self._launch(name, op, buffers["x"], self._squares, buffers["act"])
        elif name == "head":
            yield self._launch(name, op, buffers["x"], self._squares, buffers["logits"])
        elif model.post_norms:
            yield self._launch(name, op, buffers[op.inputs[0]], buffers["y"])
            yield bind(next(rest))
        else:
            (norm,) = next(rest).weights
            deferred: tuple[Argument, ...] = (None, None, None)
            if self._squares is not None:
                deferred = (self._weights[norm], buffers["x"], self._squares)
            yield self._launch(name, op, buffers[op.inputs[0]], buffers["residual"], *deferred)
            if self._squares is None:
                yield self._norm(norm)

    def _launch(self, name: str, op: Op, x: torch.Tensor, *operands: Argument) -> Launch:
        weight = self._weights[op.weights[0]]

        def launch(program: Program) -> None:
            kernel = f"dp_linear_{name}_{program.rows}"
            grid = (self._cubin.constant(f"{kernel}_ctas"),)
            self._cubin.launch(kernel, grid, self._step, weight, x, *operands, overlap=True)

        return launch

    def _norm(self, norm: str) -> Launch:
        weight, residual, x = self._weights[norm], self._buffers["residual"], self._buffers["x"]

        kernel, deferred = ("dp_norm", ()) if self._squares is None else ("dp_defer_norm", (self._squares,))

        def launch(program: Program) -> None:
            self._cubin.launch(kernel, (program.tokens,), self._step, weight, residual, x, *deferred, overlap=True)

        return launch
