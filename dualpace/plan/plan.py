"""The plan: a spec with everything resolved. Frozen, JSON-serialisable, and all that the serving side knows of a spec.

Sizes are in bytes, times in seconds, rates per second, unless a name says otherwise.
"""

from typing import Literal

from dualpace.frozen import Frozen

DType = Literal["bf16", "fp16", "fp32"]
AskedRoute = Literal["auto", "split", "workqueue", "flashinfer"]
TakenRoute = Literal["host", "split", "workqueue", "flashinfer"]
Bound = Literal["weights", "compute", "KV", "attention"]
PrefillKernel = Literal["tokens", "mma", "wgmma"]
FlashInferKernel = Literal["none", "decode", "prefill"]
Part = Literal["products", "attention", "other kernels", "launch"]
DTYPE_BYTES: dict[DType, int] = {"bf16": 2, "fp16": 2, "fp32": 4}


class Rope(Frozen):
    """Rotary embedding of one layer group. `scaling` "none" ignores the other scaling fields."""

    theta: float
    scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0


class LayerGroup(Frozen):
    """Layers that share a block table: same window, same rope. `window` 0 is full attention, else tokens seen."""

    name: str
    layers: tuple[int, ...]
    window: int
    rope: Rope


class Model(Frozen):
    """The architecture as kernels and step programs need it. Element counts; `dtype` is that of weights and KV.

    An `attention_softcap` of 0 leaves scores as they are.
    """

    family: str
    dtype: DType
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    norm_eps: float
    norm_offset: float
    activation: Literal["silu", "gelu_tanh"]
    qkv_bias: bool
    qk_norm: bool
    post_norms: bool
    tie_embeddings: bool
    embed_scale: float
    attention_scale: float
    attention_softcap: float = 0.0
    groups: tuple[LayerGroup, ...]

    @property
    def gqa_ratio(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads

    @property
    def element_bytes(self) -> int:
        """Bytes of one weight, activation or KV element."""
        return DTYPE_BYTES[self.dtype]

    def group_of(self, layer: int) -> int:
        """Index of the group that `layer` belongs to."""
        return next(g for g, group in enumerate(self.groups) if layer in group.layers)


class Weights(Frozen):
    """Where weights come from. `path` is a folder of safetensors or a .gguf; `kind` "random" uses `seed` instead.

    Random weights have the tokenizer of `path`, or none where it is "". `hub` is "owner/name@revision" where they are
    the model hub's; `path` is then "" if its cache is not known.
    """

    kind: Literal["random", "safetensors", "gguf"]
    path: str = ""
    hub: str = ""
    seed: int = 0


class Attention(Frozen):
    """Attention. `split_tokens`: KV tokens of one split of a decoding row, so of one work item.

    On a GPU a step has room for a work item a token, and `spare_tasks` more for splitting long rows. `flashinfer` is
    the kernel of FlashInfer's that is compiled beside our own: "decode" runs on CUDA cores, "prefill" on tensor cores.
    `prefill` is what multiplies the queries of prompt chunks: tensor core instructions on tiles of them, or decode
    attention one token after the other.
    """

    page_size: int
    route: AskedRoute
    split_tokens: int
    spare_tasks: int = 1024
    flashinfer: FlashInferKernel = "none"
    prefill: PrefillKernel = "tokens"


class KernelCost(Frozen):
    """Seconds of a layer's decode attention by a kernel, as `attention_cost` adds them up.

    `start` is every layer's, `key` that of a key of a slice of heads when all CTAs read, `tail_key` that of one for the
    CTA that reads it, `partial` that of a partial result, `merge` that of one for the CTA that merges its slice.
    """

    start: float
    key: float
    tail_key: float
    partial: float
    merge: float


class AttentionPolicy(Frozen):
    """What `attention.route: auto` decides by, on the device and here.

    `source` says what the constants were measured on, `measured` whether that was a layer like the model's. `ctas` and
    `flashinfer_ctas` are what that GPU holds at once of our own kernel and of FlashInfer's. A kernel without constants
    is never chosen. `flashinfer_gain` is the share of attention's time that having FlashInfer's kernel too saved.
    """

    source: str
    measured: bool
    ctas: int
    own: KernelCost
    flashinfer_ctas: int = 0
    flashinfer: KernelCost | None = None
    flashinfer_gain: float = 0.0


class GroupPages(Frozen):
    """KV pages of one layer group. A block is one page in one layer: K then V, all KV heads."""

    group: str
    pages: int
    block_bytes: int
    page_bytes: int
    pages_per_row: int


class Program(Frozen):
    """A step program that exists: `rows` decode rows at most, `tokens` tokens in all at most.

    `samples`: tokens whose logits it computes at most, the last of each row and those of prompts that want logprobs.
    """

    kind: Literal["decode", "mixed"]
    rows: int
    tokens: int
    samples: int


class Schedule(Frozen):
    """Capacities of the scheduler; token counts are in tokens.

    `slow_rows` of the `max_batch` rows are the slow lane's. `max_requests` is rows plus queue, or a ring each. A device
    that is idle for `park_after` seconds parks; 0: it never does.
    """

    max_batch: int
    slow_rows: int
    prefill_chunk: int
    max_queued_requests: int
    max_queued_tokens: int
    max_requests: int
    max_context: int
    prefix_reuse: bool
    history_page: int
    history_pages: int
    programs: tuple[Program, ...]
    park_after: float = 0.0


class Rings(Frozen):
    """Rings between frontends and engine; slots are powers of two, `arena_words` are 4-byte words."""

    transport: Literal["shm", "rdma"]
    rings: int
    request_slots: int
    token_slots: int
    arena_words: int
    bytes: int


class Nic(Frozen):
    """The engine's port of an RDMA device, and the gate at which frontends of other hosts ask to be let in.

    With `memory` gpu the rings are in the GPU's where NIC and GPU can do that, which is known once they have tried.
    """

    device: str
    port: int
    gid_index: int
    memory: Literal["host", "gpu"]
    gate_host: str
    gate_port: int
    tls_certificate: str
    tls_key: str
    key_file: str


class Offload(Frozen):
    """KV beyond device memory; `host_budget` is of all cards, counts are of each.

    The host pool holds `host_pages` pages. A row of the slow lane has `cache_blocks` slots in each layer on the card.
    A token of it attends to `sparse_blocks` blocks of a layer, 0: to all; the first `sinks` and the last `recent` ones
    of the row are always among them. `cpu_workers` is the most that attend to KV where it lies, 0: as many as there are
    cores for.
    """

    mode: Literal["off", "recall", "cooperative"]
    host_budget: int
    sparse_blocks: int
    sinks: int = 0
    recent: int = 0
    host_pages: int = 0
    cache_blocks: int = 0
    cpu_workers: int = 0


class Target(Frozen):
    """The hardware: `sm` is "" for the CPU, else like "90a". Rates are measured where `source` says so.

    `link_bandwidth` is that of blocks on their way from host memory to one card; the CPU, which has no link, has 0.
    """

    name: str
    kind: Literal["cpu", "cuda"]
    sm: str
    count: int
    memory: int
    read_bandwidth: float
    flops: float
    link_bandwidth: float
    source: str


class Memory(Frozen):
    """The memory map of one device. `free` is what is left under the limit after `kv`.

    Attention's lists of tasks and partial results are among the `activations`. `recall` is what rows with KV in host
    memory have on the device beside KV; they are a lane, with activations and logits of its own.
    """

    limit: int
    weights: int
    activations: int
    logits: int
    history: int
    scheduler: int
    recall: int
    kv: int
    free: int


class Serving(Frozen):
    """The HTTP side as the frontend needs it."""

    host: str
    port: int
    model_name: str
    api_key_file: str
    max_body: int
    drain: float
    log: Literal["errors", "requests", "prompts"]
    tls_certificate: str
    tls_key: str
    chat_template: str


class Floor(Frozen):
    """The least times at one operating point, at which each of `rows` rows has `context` tokens.

    `seconds` is what a decode step takes, so TPOT. `ttft_seconds` is from the arrival of that many prompts at an idle
    engine until the last of them has its first token. Bounds are what most of the time goes to: streaming weights,
    multiplying with them, reading KV, or attention's own products.
    """

    rows: int
    context: int
    route: TakenRoute
    seconds: float
    weight_seconds: float
    flop_seconds: float
    kv_seconds: float
    bound: Bound
    ttft_seconds: float
    ttft_bound: Bound
    tokens_per_second: float


class ForecastCell(Frozen):
    """The times to be expected where `Floor` gives the least. The parts of a decode step add up to `seconds`."""

    rows: int
    context: int
    seconds: float
    product_seconds: float
    attention_seconds: float
    other_seconds: float
    launch_seconds: float
    bound: Part
    ttft_seconds: float
    ttft_bound: Part
    tokens_per_second: float


class Forecast(Frozen):
    """`basis` is what was measured, on what; or, if there are no cells, why nothing can be said."""

    basis: str
    cells: tuple[ForecastCell, ...]


class RecallPace(Frozen):
    """The least times of a step of the slow lane, `rows` rows of `context` tokens that attend to `blocks` blocks each.

    `row_bytes` is what a row recalls over the links if of the blocks that a token may choose none is on the card, and
    `link_seconds` what that takes for all rows; `step_seconds` is what reading and computing takes meanwhile. With a
    share of `least_hits` of the blocks on the card the link keeps up, and all rows have `tokens_per_second`.
    """

    rows: int
    context: int
    blocks: int
    row_bytes: int
    link_seconds: float
    step_seconds: float
    least_hits: float
    tokens_per_second: float


class CooperativePace(Frozen):
    """The least times of a step of the slow lane with `workers` CPU workers, whose cards have nothing in their slots.

    Workers attend to a share `attended` of the `blocks` of a layer and row that are not always on the card; the others
    are recalled, and `host_seconds` is what both take, meanwhile `step_seconds` goes to reading and computing.
    """

    rows: int
    context: int
    workers: int
    blocks: int
    attended: float
    host_seconds: float
    step_seconds: float
    tokens_per_second: float


class Plan(Frozen):
    """Everything resolved. `auto` never appears here but as `attention.route`, which a GPU's `policy` decides."""

    name: str
    model: Model
    weights: Weights
    attention: Attention
    pages: tuple[GroupPages, ...]
    schedule: Schedule
    rings: Rings
    nic: Nic | None = None
    offload: Offload
    target: Target
    memory: Memory
    serving: Serving
    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    floors: tuple[Floor, ...]
    forecast: Forecast = Forecast(basis="nobody made one", cells=())
    policy: AttentionPolicy | None = None
    recall: tuple[RecallPace, ...] = ()
    cooperation: tuple[CooperativePace, ...] = ()
