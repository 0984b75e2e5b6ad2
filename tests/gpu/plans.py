"""The plans that the device tests compile: every GQA group, head size, page size and element type in some of them."""

from typing import Literal

from dualpace.plan.plan import (
    Attention,
    AttentionPolicy,
    FlashInferKernel,
    GroupPages,
    KernelCost,
    LayerGroup,
    Memory,
    Model,
    Offload,
    Plan,
    PrefillKernel,
    Program,
    Rings,
    Rope,
    Schedule,
    Serving,
    Target,
    Weights,
)

# With these each route is the cheapest for some batches.
COST = KernelCost(start=8e-6, key=1e-10, tail_key=1e-8, partial=2e-9, merge=1e-7)


def plan(
    name: str,
    *,
    dtype: str,
    kv_heads: int,
    ratio: int,
    head_dim: int,
    page_size: int,
    windows: tuple[int, ...] = (0,),
    pages: int = 0,
    qk_norm: bool = False,
    norm_offset: float = 0.0,
    activation: Literal["silu", "gelu_tanh"] = "silu",
    embed_scale: float = 1.0,
    softcap: float = 0.0,
    qkv_bias: bool = False,
    post_norms: bool = False,
    intermediate: int = 256,
    split_tokens: int = 128,
    context: int = 2048,
    max_batch: int = 8,
    smaller_buckets: tuple[int, ...] = (),
    step_tokens: int = 48,
    vocab: int = 1000,
    rings: int = 1,
    sm: str = "90a",
    flashinfer: FlashInferKernel = "none",
    prefill: PrefillKernel = "tokens",
) -> Plan:
    """A small plan with one layer a group, and pages for a full batch unless `pages` says how many."""
    heads = kv_heads * ratio
    element = 4 if dtype == "fp32" else 2
    block = 2 * kv_heads * page_size * head_dim * element
    pages_per_row = -(-context // page_size)
    history_page = max(64, page_size)
    names = [f"window{window}" if window else "full" for window in windows]
    return Plan(
        name=name,
        model=Model(
            family="qwen3" if qk_norm else "llama",
            dtype=dtype,
            layers=len(windows),
            hidden=heads * head_dim,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=intermediate,
            vocab=vocab,
            context=context,
            norm_eps=1e-6,
            norm_offset=norm_offset,
            activation=activation,
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            post_norms=post_norms,
            tie_embeddings=False,
            embed_scale=embed_scale,
            attention_scale=head_dim**-0.5,
            attention_softcap=softcap,
            groups=tuple(
                LayerGroup(
                    name=name, layers=(layer,), window=window, rope=Rope(theta=10_000.0 if window else 500_000.0)
                )
                for layer, (name, window) in enumerate(zip(names, windows, strict=True))
            ),
        ),
        weights=Weights(kind="random"),
        attention=Attention(
            page_size=page_size,
            route="split",
            split_tokens=split_tokens,
            flashinfer=flashinfer,
            prefill=prefill,
        ),
        pages=tuple(
            GroupPages(
                group=name,
                pages=pages or max_batch * pages_per_row,
                block_bytes=block,
                page_bytes=block,
                pages_per_row=pages_per_row,
            )
            for name in names
        ),
        schedule=Schedule(
            max_batch=max_batch,
            slow_rows=0,
            prefill_chunk=step_tokens - max_batch,
            max_queued_requests=8,
            max_queued_tokens=8192,
            max_requests=max_batch + 8,
            max_context=context,
            prefix_reuse=True,
            history_page=history_page,
            history_pages=-(-context // history_page) * (max_batch + 8),
            programs=(
                *(
                    Program(kind="decode", rows=rows, tokens=rows, samples=rows)
                    for rows in (*smaller_buckets, max_batch)
                ),
                Program(kind="mixed", rows=max_batch, tokens=step_tokens, samples=max_batch + 16),
            ),
        ),
        rings=Rings(
            transport="shm", rings=rings, request_slots=64, token_slots=1024, arena_words=65_536, bytes=1 << 20
        ),
        offload=Offload(mode="off", host_budget=0, sparse_blocks=0),
        target=Target(
            name="test",
            kind="cuda",
            sm=sm,
            count=1,
            memory=1 << 34,
            read_bandwidth=1e12,
            flops=1e14,
            link_bandwidth=5e10,
            source="none",
        ),
        memory=Memory(
            limit=1 << 34, weights=0, activations=0, logits=0, history=0, scheduler=0, recall=0, kv=0, free=0
        ),
        serving=Serving(
            host="127.0.0.1",
            port=8000,
            model_name=name,
            api_key_file="",
            max_body=1 << 20,
            drain=1.0,
            log="requests",
            tls_certificate="",
            tls_key="",
            chat_template="",
        ),
        policy=AttentionPolicy(source="nothing", measured=False, ctas=132, own=COST),
        parameters=0,
        weight_bytes=0,
        kv_bytes_per_token=0,
        floors=(),
    )


PLANS = {
    p.name: p
    for p in (
        plan("g1-d64-p16-bf16", dtype="bf16", kv_heads=2, ratio=1, head_dim=64, page_size=16, flashinfer="decode"),
        plan("g2-d80-p16-bf16", dtype="bf16", kv_heads=2, ratio=2, head_dim=80, page_size=16),
        plan("g3-d96-p8-fp16", dtype="fp16", kv_heads=2, ratio=3, head_dim=96, page_size=8),
        plan("g4-d128-p16-bf16", dtype="bf16", kv_heads=8, ratio=4, head_dim=128, page_size=16, flashinfer="decode"),
        plan("g5-d128-p32-fp16", dtype="fp16", kv_heads=2, ratio=5, head_dim=128, page_size=32, flashinfer="prefill"),
        plan("g6-d64-p64-bf16", dtype="bf16", kv_heads=2, ratio=6, head_dim=64, page_size=64, flashinfer="prefill"),
        plan("g7-d128-p16-bf16", dtype="bf16", kv_heads=4, ratio=7, head_dim=128, page_size=16, flashinfer="prefill"),
        plan("g8-d128-p128-fp16", dtype="fp16", kv_heads=1, ratio=8, head_dim=128, page_size=128, flashinfer="decode"),
        plan("g9-d64-p16-bf16", dtype="bf16", kv_heads=2, ratio=9, head_dim=64, page_size=16),
        plan(
            "g16-d128-p16-bf16",
            dtype="bf16",
            kv_heads=2,
            ratio=16,
            head_dim=128,
            page_size=16,
            flashinfer="prefill",
        ),
        plan("g16-d256-p32-fp32", dtype="fp32", kv_heads=1, ratio=16, head_dim=256, page_size=32),
        plan("g8-d80-p16-fp32", dtype="fp32", kv_heads=2, ratio=8, head_dim=80, page_size=16, qk_norm=True),
        plan(
            "long-g4-d128-p16-bf16",
            dtype="bf16",
            kv_heads=1,
            ratio=4,
            head_dim=128,
            page_size=16,
            split_tokens=256,
            context=131_072,
            flashinfer="decode",
        ),
        plan("g2-d64-p16-fp32", dtype="fp32", kv_heads=2, ratio=2, head_dim=64, page_size=16),
        plan(
            "many-pages-small-splits",
            dtype="bf16",
            flashinfer="prefill",
            kv_heads=1,
            ratio=4,
            head_dim=64,
            page_size=8,
            pages=70_000,
            split_tokens=8,
        ),
        plan(
            "windows-g4-d256-p16-bf16",
            dtype="bf16",
            flashinfer="prefill",
            kv_heads=1,
            ratio=4,
            head_dim=256,
            page_size=16,
            windows=(100, 0),
            qk_norm=True,
            norm_offset=1.0,
            activation="gelu_tanh",
            embed_scale=1024**0.5 + 0.1,
        ),
        plan(
            "softcap-g2-d256-p16-bf16",
            dtype="bf16",
            kv_heads=2,
            ratio=2,
            head_dim=256,
            page_size=16,
            softcap=1.5,
            flashinfer="decode",
        ),
        plan("softcap-g2-d64-p16-fp32", dtype="fp32", kv_heads=2, ratio=2, head_dim=64, page_size=16, softcap=1.5),
        plan("windows-g3-d96-p8-bf16", dtype="bf16", kv_heads=2, ratio=3, head_dim=96, page_size=8, windows=(0, 512)),
    )
}
