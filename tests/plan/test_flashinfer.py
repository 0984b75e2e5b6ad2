"""Which decode attention FlashInfer's kernels cover."""

import pytest

from dualpace.plan.flashinfer import kernel
from tests.plans import example

MODEL = example("llama-3.1-8b-h200").model


@pytest.mark.parametrize(
    ("ratio", "head_dim", "dtype", "expected"),
    [
        (1, 64, "bf16", "decode"),
        (2, 256, "fp16", "decode"),
        (4, 128, "bf16", "prefill"),
        (7, 64, "fp16", "prefill"),
        (16, 256, "bf16", "prefill"),
        (17, 128, "bf16", "none"),
        (4, 80, "bf16", "none"),
        (4, 128, "fp32", "none"),
    ],
)
def test_a_kernel_covers_heads_that_it_was_written_for(ratio, head_dim, dtype, expected):
    model = MODEL.model_copy(update={"heads": 8 * ratio, "kv_heads": 8, "head_dim": head_dim, "dtype": dtype})
    assert kernel(model) == expected


def test_a_plan_without_the_route_has_no_kernel_of_flashinfer():
    assert example("llama-3.1-8b-h200", attention={"route": "workqueue"}).attention.flashinfer == "none"
    assert example("llama-3.1-8b-h200", attention={"route": "flashinfer"}).attention.flashinfer == "prefill"
