"""A plan's step programs as CUDA graphs: buffers are made once, each operation is launched into the graph of a bucket.

Nothing in a graph depends on a batch: kernels read its sizes from the StepBuffers, and a bucket's products run over all
of its rows, those that the batch leaves unused included. Activations have the model's dtype, logits are fp32.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch

from dualpace.engine.device import Argument, Cubin
from dualpace.engine.streamed import Launch, StreamedProducts
from dualpace.model.weights import DTYPES
from dualpace.plan.plan import Plan, Program
from dualpace.plan.program import Op, buffers, step_program, streams
from dualpace.plan.rope import inverse_frequencies
from dualpace.plan.structs import Route

FLASHINFER_KERNEL = "dp_attention_flashinfer"
PREFILL_KERNEL = "dp_prefill"
# What a thread of the kernels over vectors moves, and how many of them a CTA of theirs has.
VECTOR_BYTES = 16
VECTOR_THREADS = 256


class DeviceExecutor:
    """The buffers and KV pools of one lane, and its step programs as they are captured.

    `step` is the lane's StepBuffers, `sample` launches the sampler over logits [samples, vocab].
    """

    def __init__(
        self,
        plan: Plan,
        weights: Mapping[str, torch.Tensor],
        cubin: Cubin,
        step: torch.Tensor,
        sample: Callable[[torch.Tensor], None],
    ) -> None:
        """Allocate what `plan` says and bind its step program; `weights`, on the GPU, must have every name of it."""
        model = plan.model
        self._plan, self._weights, self._cubin, self._step = plan, weights, cubin, step
        self._sample_logits = sample
        self._leading = {name: leading for name, (leading, _) in buffers(model).items()}
        rows = {
            "T": max(program.tokens for program in plan.schedule.programs),
            "S": max(program.samples for program in plan.schedule.programs),
        }
        self.buffers = {
            # Rows that no batch has used yet are multiplied too.
            name: torch.zeros(rows[lead], size, dtype=self._dtype(name), device="cuda")
            for name, (lead, size) in buffers(model).items()
        }
        self.pools = [self._pool(layer) for layer in range(model.layers)]
        self._rotations = torch.empty(len(model.groups), rows["T"], model.head_dim, device="cuda")
        self._route = Route[plan.attention.route.upper()]
        self._ctas = cubin.resident_ctas("dp_attention")
        self._flashinfer_ctas = cubin.resident_ctas(FLASHINFER_KERNEL) if cubin.has(FLASHINFER_KERNEL) else 0
        tasks, heads = cubin.constant("dp_attention_max_tasks"), cubin.constant("dp_attention_slice_heads")
        self._tasks = torch.zeros(cubin.constant("dp_attention_tasks_bytes"), dtype=torch.uint8, device="cuda")
        self._partials = torch.empty(tasks, heads, model.head_dim, device="cuda")
        self._lses = torch.empty(tasks, heads, device="cuda")
        self._prefills = plan.attention.prefill != "tokens"
        if self._prefills:
            self._prefill_ctas = cubin.resident_ctas(PREFILL_KERNEL)
            self._prefill_tasks, self._prefill_partials = (
                torch.zeros(cubin.constant(f"dp_prefill_{name}_bytes"), dtype=torch.uint8, device="cuda")
                for name in ("tasks", "partials")
            )
        ops = tuple(_fused(step_program(model)))
        products = StreamedProducts(model, weights, cubin, step, self.buffers, self._rotations, self.pools)
        self._prepare = [self._list_tasks, *(self._angles(group) for group in range(len(model.groups)))]
        self._launches = [self._bind(op) for op in ops]
        self._streamed = list(products.launches(ops, self._bind))

    def launch(self, program: Program) -> None:
        """Launch every operation of `program` on torch's current stream."""
        streamed = streams(self._plan.model, program)
        for launch in (*self._prepare, *(self._streamed if streamed else self._launches)):
            launch(program)

    def _dtype(self, name: str) -> torch.dtype:
        return torch.float32 if name in ("residual", "logits") else DTYPES[self._plan.model.dtype]

    def _pool(self, layer: int) -> torch.Tensor:
        """KV of one layer: [page, K or V, KV head, token, element]."""
        model = self._plan.model
        pages = self._plan.pages[model.group_of(layer)].pages
        shape = (pages, 2, model.kv_heads, self._plan.attention.page_size, model.head_dim)
        return torch.empty(shape, dtype=DTYPES[model.dtype], device="cuda")

    def _list_tasks(self, program: Program) -> None:
        groups = len(self._plan.model.groups)
        operands = (self._plan.attention.split_tokens, self._ctas, self._flashinfer_ctas, self._tasks)
        self._cubin.launch("dp_attention_tasks", (groups,), self._step, int(self._route), *operands)
        if self._prefills and program.kind == "mixed":
            self._cubin.launch("dp_prefill_tasks", (groups,), self._step, self._prefill_ctas, self._prefill_tasks)

    def _bind(self, op: Op) -> Launch:
        bind: dict[str, Callable[[Op], Launch]] = {
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

    def _rows(self, name: str, program: Program) -> int:
        """Rows of the buffer that `program` may use."""
        return program.tokens if self._leading[name] == "T" else program.samples

    def _each_token(self, kernel: str, *arguments: Argument) -> Launch:
        """A launch of a CTA a token."""
        return lambda program: self._cubin.launch(kernel, (program.tokens,), self._step, *arguments, overlap=True)

    def _each_vector(self, kernel: str, output: str, width: int, *arguments: Argument) -> Launch:
        """A launch of a thread for each 16 bytes of rows of `width` elements, as many as those of `output`."""
        ctas = -(-width * self._plan.model.element_bytes // (VECTOR_BYTES * VECTOR_THREADS))
        rows = partial(self._rows, output)
        return lambda program: self._cubin.launch(kernel, (ctas * rows(program),), self._step, *arguments, overlap=True)

    def _embed(self, op: Op) -> Launch:
        width, operands = self._plan.model.hidden, (self._weights[op.weights[0]], self.buffers[op.outputs[0]])
        return self._each_vector("dp_embed", op.outputs[0], width, *operands)

    def _norm(self, op: Op) -> Launch:
        x, y = self.buffers[op.inputs[0]], self.buffers[op.outputs[0]]
        return self._each_token("dp_norm", self._weights[op.weights[0]], x, y)

    def _add_norm(self, op: Op) -> Launch:
        residual, y, x = (self.buffers[name] for name in (*op.inputs, op.outputs[1]))
        *post, norm = (self._weights[name] for name in op.weights)
        return self._each_token("dp_add_norm", post[0] if post else None, norm, residual, y, x)

    def _linear(self, op: Op) -> Launch:
        weight = self._weights[op.weights[0]].t()
        bias = self._weights[op.weights[1]] if len(op.weights) > 1 else None
        x, y = self.buffers[op.inputs[0]], self.buffers[op.outputs[0]]

        def launch(program: Program) -> None:
            rows = self._rows(op.inputs[0], program)
            if bias is not None:
                torch.addmm(bias, x[:rows], weight, out=y[:rows])
            elif y.dtype != x.dtype:
                torch.mm(x[:rows], weight, out_dtype=y.dtype, out=y[:rows])
            else:
                torch.mm(x[:rows], weight, out=y[:rows])

        return launch

    def _angles(self, group: int) -> Launch:
        """What the rotations of a group's layers have in common.

        It waits for the list of tasks, so that what follows may read that before its own wait, as attention does.
        """
        rope = self._plan.model.groups[group].rope
        frequencies = torch.tensor(inverse_frequencies(rope, self._plan.model.head_dim), device="cuda")
        operands = (self._step, frequencies, rope.attention_factor, self._rotations[group])
        return lambda program: self._cubin.launch("dp_rope_angles", (program.tokens,), *operands)

    def _rope_append(self, op: Op) -> Launch:
        group = self._plan.model.group_of(op.layer)
        norms: list[Argument] = [self._weights[name] for name in op.weights] or [None, None]
        qkv, pool = self.buffers[op.inputs[0]], self.pools[op.layer]
        operands = (self._step, group, self._rotations[group], *norms, qkv, pool)
        ctas = self._cubin.constant("dp_kv_append_ctas_per_token")
        return lambda program: self._cubin.launch("dp_kv_append", (ctas * program.tokens,), *operands, overlap=True)

    def _attention(self, op: Op) -> Launch:
        group = self._plan.model.group_of(op.layer)
        qkv, out, pool = self.buffers[op.inputs[0]], self.buffers[op.outputs[0]], self.pools[op.layer]
        operands = (self._step, group, self._tasks, qkv, pool, self._partials, self._lses, out)

        def launch(program: Program) -> None:
            if self._prefills and program.kind == "mixed":
                chunks = (self._step, group, self._prefill_tasks, qkv, pool, self._prefill_partials, out)
                self._cubin.launch(PREFILL_KERNEL, (self._prefill_ctas,), *chunks)
            # The kernel of the route that a step does not go finds no work.
            if self._route != Route.FLASHINFER:
                self._cubin.launch("dp_attention", (self._ctas,), *operands, overlap=True)
            if self._route in (Route.AUTO, Route.FLASHINFER) and self._flashinfer_ctas:
                self._cubin.launch(FLASHINFER_KERNEL, (self._flashinfer_ctas,), *operands, overlap=True)

        return launch

    def _gate(self, op: Op) -> Launch:
        gate_up, act = self.buffers[op.inputs[0]], self.buffers[op.outputs[0]]
        return self._each_vector("dp_gate", op.outputs[0], self._plan.model.intermediate, gate_up, act)

    def _gather(self, op: Op) -> Launch:
        x, last = self.buffers[op.inputs[0]], self.buffers[op.outputs[0]]
        return self._each_vector("dp_gather", op.outputs[0], self._plan.model.hidden, x, last)

    def _sample(self, op: Op) -> Launch:
        logits = self.buffers[op.inputs[0]]
        return lambda program: self._sample_logits(logits[: program.samples])


def _fused(ops: Iterable[Op]) -> Iterator[Op]:
    """`ops` with the norm of an update, which is in place, as the first weight of the `add_norm` that follows it."""
    norm: tuple[str, ...] = ()
    for op in ops:
        if op.kind == "norm" and op.inputs == op.outputs:
            norm = op.weights
        else:
            yield op.model_copy(update={"weights": norm + op.weights}) if norm else op
            norm = ()


def captured(launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """A graph of what `launch` launches; not instantiated."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        launch()
    return graph
