"""`--what-if`: a changed value is as good as a changed spec, and a wrong one says what is wrong."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.lint.runner import lint_document
from dualpace.plan.targets import GPUS
from dualpace.plan.what_if import WhatIfError, changed_plan, parse_change
from dualpace.spec import schema
from dualpace.spec.compose import compose, read_document

from .test_comparison import LLAMA

TEXT = LLAMA.read_text(encoding="utf-8")


def what_if(*changes):
    return changed_plan(read_document(LLAMA), [parse_change(change) for change in changes], LLAMA.parent, None)


def edited(old, new):
    """The plan of the spec with one of its lines written otherwise."""
    assert TEXT.count(old) == 1
    return lint_document(compose(TEXT.replace(old, new).encode(), "edited.yaml"), LLAMA.parent).plan


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        ("max_batch=64", "max_batch: 256", "max_batch: 64"),
        ("scheduler.max_batch=auto", "max_batch: 256", "max_batch: auto"),
        ("page_size=32", "page_size: 16", "page_size: 32"),
        ("model.shape.context=8192", "    context: 131072", "    context: 8192"),
        ("gpu=a100", "gpu: h200", "gpu: a100"),
        ("memory_fraction=5e-1", "gpu: h200", "gpu: h200\n  memory_fraction: 0.5"),
        ("nic.rings=4", "target:", "nic:\n  rings: 4\n\ntarget:"),
        ("dtype=fp16", "dtype: bf16", "dtype: fp16"),
    ],
)
def test_a_change_is_as_good_as_an_edit(change, old, new):
    assert what_if(change) == edited(old, new)


def test_changes_add_up():
    assert what_if("offload.mode=recall", "host_budget=64GiB", "selection={blocks: 64}").offload.sparse_blocks == 64
    moved = what_if("gpu=null", "cpu=true", "max_batch=8")
    assert (moved.target.name, moved.schedule.max_batch) == ("cpu", 8)


def test_a_mapping_takes_the_place_of_a_word():
    path = LLAMA.with_name("llama-3.1-8b-128k-offload.yaml")
    found = changed_plan(read_document(path), [parse_change("offload.selection.blocks=64")], path.parent, None)
    assert found.offload.sparse_blocks == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("max_bach=64", "max_bach is no field of a spec; did you mean scheduler.max_batch?"),
        ("schedular.max_batch=64", "schedular.max_batch is no field of a spec; did you mean scheduler.max_batch?"),
        ("colour=red", "colour is no field of a spec; it has name, model, attention, scheduler, nic, offload,"),
        ("port=1", "port could be nic.port or nic.gate.port or serving.port; write one of them"),
        ("max_batch", "max_batch: this is not a key and a value; write it like max_batch=64"),
        ("max_batch=", "max_batch=: there is no value; `null` takes one away"),
        ("max_batch=[", "max_batch=[: not YAML"),
        (
            "max_batch=6400",
            "scheduler.max_batch=6400: scheduler.max_batch is 6400: must be a whole number from 1 to 1024",
        ),
        ("page_size=33", "attention.page_size=33: attention.page_size is 33: must be one of 8, 16, 32, 64, 128, auto"),
        ("kv_budget=40", "target.kv_budget=40: target.kv_budget is 40, a number without a unit"),
        ("kv_budget=500GiB", "target.kv_budget=500GiB: target.kv_budget: 500 GiB exceeds the"),
        ("gpu=h20", "target.gpu=h20: target.gpu: 'h20' is not a known GPU"),
        (
            "gpu=cpu",
            f"target.gpu=cpu: target.gpu: 'cpu' is not a known GPU: {', '.join(GPUS)} are; without a GPU, give",
        ),
    ],
)
def test_a_wrong_change_says_what_is_wrong(change, message):
    with pytest.raises(WhatIfError) as error:
        what_if(change)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


FIELDS = [".".join(path) for path in schema.fields()]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FIELDS) | st.text(), st.text() | st.sampled_from(["{}", "[]", "&a *a", "1e999", "\udcff"]))
def test_no_change_does_anything_else(key, value):
    with contextlib.suppress(WhatIfError):
        what_if(f"{key}={value}")
