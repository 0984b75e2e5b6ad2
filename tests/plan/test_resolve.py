"""What a spec resolves to, and what cannot be resolved."""

import contextlib
import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dualpace.lint.runner import lint_file
from dualpace.plan import abi
from dualpace.plan.plan import Plan
from dualpace.plan.resolve import PlanError, resolve
from dualpace.plan.targets import GPUS

from .deployments import GEMMA_270M, LLAMA_8B, MISTRAL_7B, plan, spec

SPECS = sorted(Path("specs").glob("*.yaml"))
GIB = 2**30

specs = st.builds(
    spec,
    shape=st.sampled_from([LLAMA_8B, GEMMA_270M, MISTRAL_7B]),
    gpu=st.sampled_from([None, "h200", "l40s", "rtx4090"]),
    attention__page_size=st.sampled_from(["auto", 8, 32, 128]),
    model__max_context=st.sampled_from(["auto", 100, 4096, 32768]),
    scheduler__max_batch=st.sampled_from(["auto", 1, 24, 256]),
    scheduler__prefill_chunk=st.sampled_from(["auto", 16, 500, 8192]),
    target__kv_budget=st.sampled_from(["auto", "40MiB", "1GiB", "4GiB"]),
    offload__mode=st.sampled_from(["off", "recall"]),
    offload__host_budget=st.just("8GiB"),
    nic__slots=st.sampled_from([64, 1024]),
)


def resolved(deployment):
    """The plan, or None if the spec is refused; nothing else may happen."""
    with contextlib.suppress(PlanError):
        return resolve(deployment, Path())
    return None


@settings(max_examples=150, deadline=None)
@given(specs)
def test_a_plan_reads_back_from_its_json(deployment):
    found = resolved(deployment)
    if found:
        assert Plan.model_validate_json(found.model_dump_json()) == found


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, path)
    else:
        yield path, value


@settings(max_examples=50, deadline=None)
@given(specs)
def test_nothing_is_auto_in_a_plan_but_the_route(deployment):
    found = resolved(deployment)
    if found:
        autos = {path for path, value in leaves(found.model_dump(mode="json")) if value == "auto"}
        assert autos <= {("attention", "route")}


@settings(max_examples=150, deadline=None)
@given(specs)
def test_the_parts_of_memory_add_up_within_the_limit(deployment):
    found = resolved(deployment)
    if not found:
        return
    memory = found.memory
    parts = (
        memory.weights,
        memory.activations,
        memory.logits,
        memory.history,
        memory.scheduler,
        memory.recall,
        memory.kv,
        memory.free,
    )
    assert min(parts) >= 0
    assert sum(parts) == memory.limit
    assert memory.kv == sum(pool.pages * pool.page_bytes for pool in found.pages)
    page = found.schedule.history_page
    assert memory.history == (4 * page + 8 * (page // found.attention.page_size) + 4) * found.schedule.history_pages


@settings(max_examples=100, deadline=None)
@given(specs)
def test_capacities_can_hold_what_they_promise(deployment):
    found = resolved(deployment)
    if not found:
        return
    schedule, rings = found.schedule, found.rings
    assert schedule.max_queued_tokens >= schedule.max_context
    assert schedule.history_pages * schedule.history_page >= schedule.max_queued_tokens + schedule.max_context
    assert schedule.history_pages * schedule.history_page >= 2 * rings.rings * schedule.max_context
    assert schedule.max_requests >= rings.rings
    assert rings.arena_words >= 4 * schedule.max_context
    assert rings.token_slots >= 4 * schedule.max_batch
    assert all(n & (n - 1) == 0 for n in (rings.request_slots, rings.token_slots, rings.arena_words))
    largest = {program.kind: (program.rows, program.tokens) for program in schedule.programs}
    assert largest["decode"] == (schedule.max_batch, schedule.max_batch)
    assert largest["mixed"] == (schedule.max_batch, max(schedule.prefill_chunk, 2 * schedule.max_batch))
    # The scheduler takes the first that holds a step.
    assert list(schedule.programs) == sorted(schedule.programs, key=lambda p: (p.kind, p.tokens))
    assert found.attention.split_tokens % found.attention.page_size == 0
    assert all(floor.rows <= schedule.max_batch and floor.context <= schedule.max_context for floor in found.floors)


def test_prefix_reuse_is_on_unless_it_is_turned_off():
    assert plan(LLAMA_8B).schedule.prefix_reuse
    assert not plan(LLAMA_8B, scheduler={"prefix_reuse": False}).schedule.prefix_reuse


def test_a_gpu_parks_if_it_is_told_to():
    assert plan(LLAMA_8B).schedule.park_after == 0
    assert plan(LLAMA_8B, scheduler={"park_after": "1500ms"}).schedule.park_after == 1.5


def test_shared_structs_fit_the_memory_that_the_plan_gives_them():
    for found in (plan(LLAMA_8B), plan(GEMMA_270M, gpu=None)):
        assert ctypes.sizeof(abi.view("StepBuffers", found)) <= found.memory.scheduler
        assert found.rings.bytes == abi.ring_bytes(found.rings)
        assert found.rings.bytes < 64 * 2**20


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_example_spec_plans(path):
    result = lint_file(path)
    assert result.plan is not None, [d.message for d in result.diagnostics]


def test_there_are_example_specs():
    assert len(SPECS) >= 6


def test_resolving_imports_neither_torch_nor_numpy():
    code = (
        "import sys; from pathlib import Path; from dualpace.lint.runner import lint_file; "
        f"assert lint_file(Path({str(SPECS[0])!r})).plan; "
        "print(sorted({'torch', 'numpy', 'transformers', 'gguf'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_llama_8b_on_an_h200_has_a_batch_of_256_and_the_whole_context():
    found = plan(LLAMA_8B)
    assert (found.schedule.max_batch, found.schedule.prefill_chunk) == (256, 2048)
    assert (found.schedule.max_context, found.attention.page_size) == (131072, 16)
    assert [p.rows for p in found.schedule.programs if p.kind == "decode"] == [
        1,
        8,
        32,
        64,
        96,
        128,
        160,
        192,
        224,
        256,
    ]
    assert found.pages[0].pages > 50_000
    assert found.kv_bytes_per_token == 128 * 1024


def test_a_cpu_has_one_decode_program_and_a_gibibyte_of_kv():
    found = plan(GEMMA_270M, gpu=None)
    assert [(p.kind, p.rows, p.tokens) for p in found.schedule.programs] == [("decode", 32, 32), ("mixed", 32, 512)]
    assert 0.99 * GIB < found.memory.kv <= GIB
    assert found.target.source == "nominal"


def test_kv_is_never_more_than_a_full_batch_of_longest_rows_can_use():
    found = plan(GEMMA_270M, gpu="h200", model__max_context=1024)
    assert found.pages[0].pages == 256 * 64
    assert found.memory.free > 100 * GIB


def test_the_page_size_changes_blocks_and_pages_and_not_their_sum():
    small, large = plan(attention__page_size=16), plan(attention__page_size=64)
    assert large.pages[0].block_bytes == 4 * small.pages[0].block_bytes
    assert large.pages[0].pages_per_row == small.pages[0].pages_per_row // 4
    assert large.memory.kv == pytest.approx(small.memory.kv, rel=0.001)


def test_the_dtype_changes_bytes_and_no_count():
    wide, narrow = plan(model__dtype="fp32"), plan(model__dtype="bf16")
    assert wide.weight_bytes == 2 * narrow.weight_bytes
    assert wide.kv_bytes_per_token == 2 * narrow.kv_bytes_per_token
    assert wide.parameters == narrow.parameters


def test_max_batch_is_lowered_until_each_row_has_room():
    assert plan(LLAMA_8B, target__kv_budget="1GiB").schedule.max_batch == 32


def test_the_context_is_lowered_to_what_fits():
    assert plan(LLAMA_8B, target__kv_budget="1GiB").schedule.max_context == 8192


def test_a_cpu_finds_memory_for_the_context_that_was_asked_for():
    assert plan(LLAMA_8B, gpu=None, model__max_context=32768).schedule.max_context == 32768


def test_the_largest_context_that_an_error_names_does_fit():
    with pytest.raises(PlanError) as refused:
        plan(LLAMA_8B, model__max_context=100_000, target__kv_budget="1GiB")
    assert refused.value.path == ("model", "max_context")
    assert "the largest that fits is 8192" in refused.value.message
    assert plan(LLAMA_8B, model__max_context=8192, target__kv_budget="1GiB").schedule.max_context == 8192


def test_host_memory_lengthens_a_row_and_not_the_pools():
    off = plan(LLAMA_8B, target__kv_budget="1GiB")
    on = plan(LLAMA_8B, target__kv_budget="1GiB", offload__mode="recall", offload__host_budget="16GiB")
    assert (off.schedule.max_context, on.schedule.max_context) == (8192, 131072)
    assert off.memory.kv == on.memory.kv


def test_cards_share_weights_and_kv_heads():
    one, four = plan(gpu="h100"), plan(gpu="h100", target__count=4)
    assert four.memory.weights == one.memory.weights // 4
    assert four.pages[0].block_bytes == one.pages[0].block_bytes // 4


def test_mistral_slides_in_one_group_and_gemma_in_two():
    (sliding,) = plan(MISTRAL_7B).model.groups
    assert (sliding.window, len(sliding.layers)) == (4096, 32)
    full, local = plan(GEMMA_270M).model.groups
    assert (full.layers, full.window, full.rope.theta) == ((5, 11, 17), 0, 1e6)
    assert (len(local.layers), local.window, local.rope.theta) == (15, 512, 1e4)


def test_a_scaling_of_gemma_is_for_full_attention_only():
    shape = GEMMA_270M | {"rope_scaling": {"type": "linear", "factor": 8.0}}
    full, local = plan(shape).model.groups
    assert (full.rope.scaling, local.rope.scaling) == ("linear", "none")


def test_a_pattern_longer_than_the_model_leaves_all_layers_sliding():
    (group,) = plan(GEMMA_270M | {"layers": 4}).model.groups
    assert (group.name, group.rope.theta) == ("sliding", 1e4)


REFUSED = [
    ({"target__gpu": "h2000"}, "target.gpu", "h200"),
    ({"target__cpu": True}, "target", "exactly one"),
    ({"target__count": 3}, "target.count", "8 KV heads"),
    ({"target__kv_budget": "139GiB"}, "target.kv_budget", "leave"),
    ({"target__kv_budget": "1MiB"}, "target.kv_budget", "one page"),
    ({"gpu": "rtx3060"}, "target", "exceed"),
    ({"model__max_context": 200_000}, "model.max_context", "131072"),
    ({"model__hub": "meta-llama/Llama-3.1-8B"}, "model.hub", "revision"),
    ({"model__weights": "checkpoint"}, "model.weights", "random"),
    ({"model__path": "a", "model__hub": "b/c"}, "model.path", "both"),
    ({"attention__gqa_ratio": 8}, "attention.gqa_ratio", "make it 4"),
    ({"gpu": None, "attention__route": "flashinfer"}, "attention.route", "GPU"),
    ({"gpu": None, "model__max_context": 1024, "scheduler__park_after": "9s"}, "scheduler.park_after", "leave it out"),
    ({"nic__transport": "rdma", "nic__device": "mlx5_0", "scheduler__park_after": "9s"}, "scheduler.park_after", "NIC"),
    ({"scheduler__max_queued_tokens": 1000}, "scheduler.max_queued_tokens", "131072"),
    ({"scheduler__max_batch": 600, "target__kv_budget": "1GiB", "model__max_context": 1024},
     "scheduler.max_batch", "600 rows a page each"),
    ({"nic__slots": 1000}, "nic.slots", "512 or 1024"),
    ({"nic__transport": "rdma"}, "nic.device", "needs a device"),
    ({"offload__mode": "recall"}, "offload.host_budget", "needs host memory"),
    ({"serving__chat_template": "absent.jinja"}, "serving.chat_template", "absent.jinja"),
    ({"shape": LLAMA_8B | {"kv_heads": 5}}, "model.shape.kv_heads", "multiple"),
    ({"shape": LLAMA_8B | {"heads": 24}}, "model.shape.head_dim", "give head_dim"),
    ({"shape": LLAMA_8B | {"hidden": 4104, "head_dim": 128}}, "model.shape.hidden", "multiple of 16"),
    ({"shape": LLAMA_8B | {"intermediate": 14_340}}, "model.shape.intermediate", "multiple of 8"),
    ({"shape": LLAMA_8B | {"head_dim": 100}}, "model.shape.head_dim", "multiple of 8"),
    ({"shape": LLAMA_8B | {"sliding_window": 4096}}, "model.shape.sliding_window", "no sliding window"),
    ({"shape": LLAMA_8B | {"attention_softcap": 50.0}}, "model.shape.attention_softcap", "no soft cap"),
    ({"shape": LLAMA_8B | {"rope_scaling": {"type": "yarn", "factor": 4.0}}},
     "model.shape.rope_scaling.original_context", "trained context"),
    ({"shape": GEMMA_270M, "model__dtype": "fp16"}, "model.dtype", "bf16 or fp32"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "path", "named"), REFUSED, ids=[path for _, path, _ in REFUSED])
def test_what_cannot_be_resolved_names_the_field_and_the_remedy(fields, path, named):
    with pytest.raises(PlanError) as refused:
        plan(**fields)
    assert ".".join(map(str, refused.value.path)) == path
    assert named in f"{refused.value.message}; {refused.value.help}"


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(gpu=st.sampled_from(sorted(GPUS)))
def test_a_small_model_fits_every_gpu(gpu):
    assert plan(GEMMA_270M, gpu=gpu).target.sm == GPUS[gpu].sm


@pytest.mark.parametrize(("field", "value"), [("intermediate", 14344), ("head_dim", 72)])
def test_what_the_cpus_kernels_cannot_do_is_refused_there_alone(field, value):
    shape = LLAMA_8B | {"head_dim": 128, field: value}
    with pytest.raises(
        PlanError, match=rf"^model\.shape\.{field}: {field} {value} is not a multiple of 16.*GPU"
    ) as caught:
        plan(shape=shape, gpu=None)
    assert caught.value.path == ("model", "shape", field)
    assert plan(shape=shape, gpu="h200").model.model_dump()[field] == value


def test_random_weights_have_the_tokenizer_of_a_path_that_is_here(tmp_path):
    config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
              "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256, "rms_norm_eps": 1e-5,
              "rope_theta": 500000.0, "max_position_embeddings": 131072}  # fmt: skip
    (tmp_path / "here").mkdir()
    (tmp_path / "here/config.json").write_text(json.dumps(config))
    here = plan(base=tmp_path, model__path="here", model__shape=None)
    assert (here.weights.kind, here.weights.path) == ("random", str(tmp_path / "here"))
    absent = plan(base=tmp_path, model__path="absent")
    assert (absent.weights.kind, absent.weights.path) == ("random", "")
