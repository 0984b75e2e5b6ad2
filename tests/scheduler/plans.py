"""Plans small enough that every limit of the scheduler is met within a few steps."""

from dualpace.plan import abi
from dualpace.plan.plan import (
    Attention,
    GroupPages,
    LayerGroup,
    Memory,
    Model,
    Offload,
    Plan,
    Program,
    Rings,
    Rope,
    Schedule,
    Serving,
    Target,
    Weights,
)

VOCAB = 97


def small_plan(
    name: str,
    *,
    windows: tuple[int, ...] = (0,),
    pages: tuple[int, ...] = (64,),
    page_size: int = 8,
    max_batch: int = 6,
    prefill_chunk: int = 16,
    samples: int = 8,
    context: int = 96,
    queue: int = 12,
    queued_tokens: int = 1024,
    history_page: int = 16,
    history_pages: int = 96,
    rings: int = 1,
    request_slots: int = 16,
    token_slots: int = 64,
    arena_words: int = 1024,
    vocab: int = VOCAB,
    prefix_reuse: bool = True,
    slow_rows: int = 0,
) -> Plan:
    """`windows` and `pages` are by layer group; a step looks at the logits of at most `samples` tokens."""
    counts = {"rings": rings, "request_slots": request_slots, "token_slots": token_slots, "arena_words": arena_words}
    groups = tuple(
        LayerGroup(name=f"g{g}", layers=(g,), window=window, rope=Rope(theta=1e4)) for g, window in enumerate(windows)
    )
    return Plan(
        name=name,
        model=Model(
            family="llama", dtype="fp32", layers=len(windows), hidden=64, heads=2, kv_heads=1, head_dim=32,
            intermediate=64, vocab=vocab, context=context, norm_eps=1e-6, norm_offset=0.0, activation="silu",
            qkv_bias=False, qk_norm=False, post_norms=False, tie_embeddings=True, embed_scale=1.0,
            attention_scale=1.0, groups=groups,
        ),
        weights=Weights(kind="random"),
        attention=Attention(page_size=page_size, route="split", split_tokens=64),
        pages=tuple(
            GroupPages(group=group.name, pages=n, block_bytes=0, page_bytes=0, pages_per_row=-(-context // page_size))
            for group, n in zip(groups, pages, strict=True)
        ),
        schedule=Schedule(
            max_batch=max_batch, slow_rows=slow_rows, prefill_chunk=prefill_chunk, max_queued_requests=queue,
            max_queued_tokens=queued_tokens, max_requests=max_batch + queue, max_context=context,
            prefix_reuse=prefix_reuse, history_page=history_page, history_pages=history_pages,
            programs=(
                Program(kind="decode", rows=max_batch, tokens=max_batch, samples=max_batch),
                Program(
                    kind="mixed", rows=max_batch, tokens=max_batch + prefill_chunk, samples=samples
                ),
            ),
        ),
        rings=Rings(transport="shm", bytes=abi.ring_bytes(Rings(transport="shm", bytes=0, **counts)), **counts),
        offload=Offload(mode="off", host_budget=0, sparse_blocks=0),
        target=Target(
            name="cpu", kind="cpu", sm="", count=1, memory=1 << 30, read_bandwidth=1e10, flops=1e12, link_bandwidth=0.0,
            source="none",
        ),
        memory=Memory(limit=0, weights=0, activations=0, logits=0, history=0, scheduler=0, recall=0, kv=0, free=0),
        serving=Serving(
            host="", port=0, model_name=name, api_key_file="", max_body=0, drain=0.0,
            log="requests", tls_certificate="", tls_key="", chat_template=""
        ),
        parameters=0,
        weight_bytes=0,
        kv_bytes_per_token=0,
        floors=(),
    )  # fmt: skip


# Room for everything.
ROOMY = small_plan("roomy")
# Two groups whose pools hold little more than one long row, so that rows are preempted all the time, rings that wrap
# every few requests, token rings of a few steps, and an arena of a few prompts.
TIGHT = small_plan(
    "tight",
    windows=(0, 20),
    pages=(16, 10),
    rings=2,
    request_slots=4,
    token_slots=16,
    arena_words=256,
    queue=5,
    queued_tokens=200,
    history_pages=31,
)
# Pages of two tokens and a window of one, chunks cut by the windowed pool.
NARROW = small_plan("narrow", windows=(1, 0), pages=(4, 48), page_size=2, max_batch=3, history_page=4, history_pages=99)
# History for one long life beside what each ring is owed, so that admission waits for history too.
FORGETFUL = small_plan("forgetful", pages=(14,), rings=2, history_pages=31, request_slots=8)
# Two lanes that contend for pages, row slots and room in rings. A host's engine steps one lane alone.
TWO_LANES = small_plan(
    "two lanes",
    windows=(0, 20),
    pages=(16, 12),
    max_batch=7,
    slow_rows=3,
    rings=2,
    request_slots=8,
    token_slots=16,
    arena_words=512,
    queue=8,
    history_pages=31,
)
PLANS = {plan.name: plan for plan in (ROOMY, TIGHT, NARROW, FORGETFUL)}
