"""The spec: what a user writes. Every field has a description, a unit where it has one, and an example.

`auto` may stand in a Spec and never in a Plan. Sizes are in bytes and durations in seconds once parsed.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from dualpace.frozen import Frozen
from dualpace.spec.units import Duration, Size

Auto = Literal["auto"]
Family = Literal["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3"]

# Limits far above any model or machine, so that a slip of the keyboard is caught here and plans stay small.
Layers = Annotated[int, Field(gt=0, le=1024)]
Heads = Annotated[int, Field(gt=0, le=1024)]
Elements = Annotated[int, Field(gt=0, le=2**20)]
Tokens = Annotated[int, Field(gt=0, le=2**27)]
Factor = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
Text = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]


class UnreadError(AttributeError):
    """A field whose value in the text could not be read; what is wrong with it has been reported."""


class Section(Frozen):
    """Fields of a spec. Where a spec is read in part, one that could not be read raises UnreadError when asked for."""

    if not TYPE_CHECKING:  # else no misspelt attribute would be an error

        def __getattr__(self, name: str) -> Any:
            if name in type(self).model_fields:
                raise UnreadError(name)
            return super().__getattr__(name)


class RopeScaling(Section):
    """How rotary frequencies are stretched beyond the context that the model was trained with."""

    type: Literal["linear", "llama3", "yarn"] = Field(description="Scaling rule.", examples=["llama3"])
    factor: Factor = Field(description="Context stretch, a ratio.", examples=[8.0])
    original_context: Tokens | None = Field(
        None, description="Context the model was trained with, in tokens; llama3 and yarn need it.", examples=[8192]
    )
    low_freq_factor: Factor = Field(1.0, description="llama3: low-frequency bound, a ratio.", examples=[1.0])
    high_freq_factor: Factor = Field(4.0, description="llama3: high-frequency bound, a ratio.", examples=[4.0])
    beta_fast: Factor = Field(32.0, description="yarn: fast bound, in rotations.", examples=[32.0])
    beta_slow: Factor = Field(1.0, description="yarn: slow bound, in rotations.", examples=[1.0])
    attention_factor: Factor | None = Field(
        None, description="yarn: factor on queries and keys; derived from `factor` if absent.", examples=[1.0]
    )


class Shape(Section):
    """The architecture's numbers, so that a spec can be linted, planned and built without weights or a network."""

    family: Family = Field(description="Architecture family.", examples=["llama"])
    layers: Layers = Field(description="Decoder layers.", examples=[32])
    hidden: Elements = Field(description="Hidden size, in elements.", examples=[4096])
    heads: Heads = Field(description="Query heads.", examples=[32])
    kv_heads: Heads = Field(description="Key and value heads.", examples=[8])
    head_dim: Elements | None = Field(
        None, description="Elements of one head; hidden / heads if absent.", examples=[128]
    )
    intermediate: Elements = Field(description="MLP width, in elements.", examples=[14336])
    vocab: Annotated[int, Field(gt=0, le=2**22)] = Field(description="Rows of the embedding table.", examples=[128256])
    context: Tokens = Field(description="Longest context the model supports, in tokens.", examples=[131072])
    norm_eps: Factor = Field(1e-6, description="Epsilon of the RMS norms.", examples=[1e-5])
    rope_theta: Factor | None = Field(
        None, description="Base of the rotary frequencies; the family's if absent.", examples=[500000.0]
    )
    rope_local_theta: Factor | None = Field(
        None,
        description="Base of the rotary frequencies in sliding-window layers; the family's if absent.",
        examples=[10000.0],
    )
    rope_scaling: RopeScaling | None = Field(None, description="Rotary scaling of the full-attention layers.")
    sliding_window: Tokens | None = Field(
        None, description="Tokens a sliding-window layer sees, itself included.", examples=[512]
    )
    sliding_pattern: Layers | None = Field(
        None,
        description="With a sliding window: every n-th layer has full attention, 1 means that all layers slide; "
        "the family's if absent.",
        examples=[6],
    )
    attention_scale: Factor | None = Field(
        None, description="Factor on query-key products; head_dim ** -0.5 if absent.", examples=[0.0625]
    )
    attention_softcap: Factor | None = Field(
        None,
        description="Attention scores s become c * tanh(s / c) with this c; as they are if absent.",
        examples=[50.0],
    )
    tie_embeddings: bool | None = Field(
        None, description="The output head is the embedding table; the family's habit if absent.", examples=[True]
    )


class RandomWeights(Section):
    """Seeded random weights of the true shape, for measuring."""

    random: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(description="Seed of the random weights.", examples=[0])


class ModelSection(Section):
    """Which model is served. Exactly one of `hub`, `path` or, with random weights, `shape` alone names it."""

    hub: str | None = Field(
        None,
        pattern=r"^[\w.-]+/[\w.-]+$",
        description="Model hub id; needs `revision`, and a `shape` or a local snapshot.",
        examples=["meta-llama/Llama-3.1-8B"],
    )
    revision: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{40}$",
        description="Commit of the hub repository, 40 hex digits, so that a build repeats.",
        examples=["d04e592bb4f6aa9cfee91e2e20afa771667e1d4b"],
    )
    path: Text | None = Field(
        None,
        description="Folder with config.json and safetensors, or a .gguf file; relative to the spec.",
        examples=["../models/gemma-3-270m.gguf"],
    )
    shape: Shape | None = Field(None, description="The architecture's numbers; read from the checkpoint if absent.")
    dtype: Literal["bf16", "fp16", "fp32"] | Auto = Field(
        "auto", description="Type of weights, activations and KV.", examples=["bf16"]
    )
    max_context: Tokens | Auto = Field(
        "auto", description="Longest prompt and output together, in tokens.", examples=[8192]
    )
    weights: Literal["checkpoint"] | RandomWeights = Field(
        "checkpoint",
        description="`checkpoint`, or `{random: SEED}` for measuring without weights; `path` or `hub` then gives the "
        "tokenizer, if it is here.",
        examples=["checkpoint", {"random": 0}],
    )


class AttentionSection(Section):
    """The attention kernels' specialisation."""

    gqa_ratio: Heads | Auto = Field("auto", description="Query heads per KV head, a check.", examples=[4])
    page_size: Literal[8, 16, 32, 64, 128] | Auto = Field(
        "auto", description="Token positions of a KV page.", examples=[16]
    )
    route: Literal["split", "workqueue", "flashinfer"] | Auto = Field(
        "auto", description="Decode attention kernel; auto lets the policy pick each step.", examples=["auto"]
    )


class SchedulerSection(Section):
    """Batching and admission."""

    max_batch: Annotated[int, Field(gt=0, le=1024)] | Auto = Field(
        "auto", description="Most requests decoded together, in rows.", examples=[256]
    )
    prefill_chunk: Annotated[int, Field(ge=16, le=8192)] | Auto = Field(
        "auto", description="Most prompt tokens of a step.", examples=[2048]
    )
    max_queued_requests: Annotated[int, Field(gt=0, le=2**20)] = Field(
        1024, description="Requests that may wait.", examples=[1024]
    )
    max_queued_tokens: Annotated[int, Field(gt=0, le=2**32)] | Auto = Field(
        "auto", description="Prompt tokens that may wait.", examples=[1048576]
    )
    prefix_reuse: bool = Field(
        True, description="Whether a prompt takes the KV of an equal beginning that is still there.", examples=[True]
    )
    park_after: Annotated[Duration, Field(gt=0)] | Literal["never"] = Field(
        "never",
        description="How long a GPU has nothing to do before it stops looking at the rings, until its process starts "
        "it again for the next request.",
        examples=["10s"],
    )


class TlsSection(Section):
    """TLS with files that the appliance reads when it starts, and again when they change."""

    certificate: Text = Field(
        description="PEM file with the certificate, and those between it and the root; relative to the spec.",
        examples=["tls/tls.crt"],
    )
    key: Text = Field(description="PEM file with its key; relative to the spec.", examples=["tls/tls.key"])


class GateSection(Section):
    """Where frontends of other hosts come in: over TLS, with a key of their own."""

    host: Text = Field("0.0.0.0", description="Address to listen on.", examples=["10.0.0.7"])
    port: Annotated[int, Field(ge=0, le=65535)] = Field(7471, description="TCP port; 0 picks one.", examples=[7471])
    tls: TlsSection = Field(description="What frontends know the engine by.")
    key_file: Text = Field(
        description="File with the key that frontends show, one line; relative to the spec.", examples=["frontend.key"]
    )


class NicSection(Section):
    """How requests reach the engine."""

    transport: Literal["shm", "rdma"] = Field(
        "shm", description="Shared memory with a local frontend, or one-sided RDMA.", examples=["shm"]
    )
    device: Text | None = Field(None, description="RDMA device.", examples=["mlx5_0"])
    port: Annotated[int, Field(ge=1, le=255)] = Field(1, description="Port of the device.", examples=[1])
    gid_index: Annotated[int, Field(ge=0, le=255)] = Field(3, description="Index of the GID.", examples=[3])
    memory: Literal["host"] | Auto = Field(
        "auto",
        description="Where the rings are that a NIC writes; auto takes the GPU's memory where NIC and GPU can.",
        examples=["host"],
    )
    gate: GateSection | None = Field(None, description="Where frontends come in, with rdma.")
    rings: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="Frontends that share the port, each a process with a ring of its own.", examples=[1]
    )
    slots: Annotated[int, Field(ge=64, le=65536)] = Field(
        1024, description="Request records of a ring, a power of two.", examples=[1024]
    )


class SparseOffload(Section):
    """Lossy recall: each step attends to the best blocks only."""

    blocks: Tokens = Field(
        description="KV blocks that a token attends to in a layer, the first and last ones of its row among them.",
        examples=[256],
    )


class OffloadSection(Section):
    """KV beyond GPU memory."""

    mode: Literal["off", "recall", "cooperative"] = Field(
        "off", description="Where KV that does not fit goes and how it is used.", examples=["off"]
    )
    host_budget: Size | None = Field(
        None, description="Pinned host memory for KV, all cards together.", examples=["64GiB"]
    )
    selection: Literal["exact"] | SparseOffload = Field(
        "exact",
        description="`exact`, or `{blocks: N}` for opt-in sparse attention.",
        examples=["exact", {"blocks": 256}],
    )
    cpu_workers: Annotated[int, Field(ge=1, le=64)] | Auto = Field(
        "auto",
        description="Cores that attend to KV in host memory at most, with cooperative; auto: all that may be used.",
        examples=[8],
    )


class TargetSection(Section):
    """The hardware that the deployment is compiled for."""

    gpu: Text | None = Field(None, description="GPU by name, see `dualpace plan`.", examples=["h200"])
    cpu: bool = Field(False, description="Serve on the CPU engine.", examples=[True])
    count: Annotated[int, Field(gt=0, le=64)] = Field(1, description="Cards of one host.", examples=[1])
    calibration: Text | None = Field(
        None,
        description="File of `dualpace calibrate`, by which `attention.route: auto` decides; relative to the spec. "
        "What is known of the target if absent.",
        examples=["h200.calibration.json"],
    )
    memory_fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="Share of the device's memory that the engine may use, a ratio.", examples=[0.9]
    )
    kv_budget: Size | Auto = Field(
        "auto", description="Memory for KV pages; auto takes what the plan leaves.", examples=["512MiB"]
    )


class ServingSection(Section):
    """The HTTP side."""

    host: Text = Field("127.0.0.1", description="Address to listen on.", examples=["0.0.0.0"])
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8000, description="TCP port; 0 picks one.", examples=[8000])
    model_name: Text | None = Field(None, description="Name in the API; the spec's name if absent.", examples=["llama"])
    api_key_file: Text | None = Field(
        None,
        description="File with one API key a line, which limits may follow, like `requests=8 "
        "tokens_per_minute=100000`; relative to the spec.",
        examples=["keys.txt"],
    )
    max_body: Size = Field("8MiB", validate_default=True, description="Largest request body.", examples=["8MiB"])
    drain: Duration = Field(
        "7s", validate_default=True, description="Longest wait for running requests at shutdown.", examples=["7s"]
    )
    tls: TlsSection | None = Field(None, description="Serve HTTPS; plain HTTP if absent.")
    log: Literal["errors", "requests", "prompts"] = Field(
        "requests",
        description="Requests that have a line in the log: those that failed in the server, all, or all with their "
        "bodies, in which the prompts are.",
        examples=["requests"],
    )
    chat_template: Text | None = Field(
        None,
        description="Jinja file that replaces the model's template; relative to the spec.",
        examples=["chat.jinja"],
    )


class Spec(Section):
    """One deployment of one model."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$",
        description="Name of the deployment: lower-case letters, digits, dots and hyphens.",
        examples=["quickstart"],
    )
    model: ModelSection
    attention: AttentionSection = Field(default_factory=AttentionSection)
    scheduler: SchedulerSection = Field(default_factory=SchedulerSection)
    nic: NicSection = Field(default_factory=NicSection)
    offload: OffloadSection = Field(default_factory=OffloadSection)
    target: TargetSection
    serving: ServingSection = Field(default_factory=ServingSection)
