"""Calibrations: which layer of a file stands for a model's, and files that do not fit."""

import json
from pathlib import Path

import pytest

from dualpace.plan.calibration import KNOWN, Calibration, resolve_policy
from dualpace.plan.error import PlanError
from dualpace.plan.resolve import resolve

from .deployments import GEMMA_270M, LLAMA_8B, plan, spec

H200 = Calibration.model_validate_json((KNOWN / "h200.json").read_text())


def layer(head_dim=128, ratio=4, dtype="bf16"):
    return next(each for each in H200.layers if (each.head_dim, each.gqa_ratio, each.dtype) == (head_dim, ratio, dtype))


def shape(ratio, head_dim):
    return LLAMA_8B | {"heads": 8 * ratio, "head_dim": head_dim}


def written(folder, **changes):
    file = folder / "calibration.json"
    file.write_text(json.dumps(H200.model_dump() | changes))
    return file


def test_a_layer_that_was_measured_has_its_own_constants():
    policy = plan(shape(8, 64)).policy
    assert (policy.measured, policy.own) == (True, layer(64, 8).own)
    assert policy.source == "measured on h200 with heads of 64, 8 to a KV head, in bf16"


def test_a_layer_that_was_not_has_those_of_the_next_larger_group_of_heads():
    policy = plan(shape(3, 128)).policy
    assert (policy.measured, policy.own) == (False, layer(ratio=4).own)
    assert policy.source == "scaled from h200 with heads of 128, 4 to a KV head, in bf16"


def test_keys_cost_by_their_bytes_and_the_bandwidth_of_the_target():
    half, h100 = plan(shape(4, 512)).policy, plan(LLAMA_8B, "h100").policy
    assert half.own.key == pytest.approx(2 * layer(256).own.key)
    assert half.own.start == layer(256).own.start
    ratio = H200.read_bandwidth / plan(LLAMA_8B, "h100").target.read_bandwidth
    assert h100.own.key == pytest.approx(ratio * layer().own.key)
    assert not h100.measured


KERNEL = layer().own


@pytest.mark.parametrize(
    ("gain", "route", "kernel"),
    [(0.05, "auto", "prefill"), (0.01, "auto", "none"), (0.05, "workqueue", "none"), (0.0, "flashinfer", "prefill")],
)
def test_auto_has_the_kernel_of_flashinfer_where_that_is_worth_its_idle_launches(gain, route, kernel, tmp_path):
    changed = layer().model_copy(update={"flashinfer": KERNEL, "flashinfer_ctas": 264, "flashinfer_gain": gain})
    written(tmp_path, layers=[changed.model_dump()])
    found = resolve(spec(target__calibration="calibration.json", attention__route=route), tmp_path)
    assert found.attention.flashinfer == kernel
    assert (found.policy.flashinfer is None) == (kernel == "none")


def test_the_cpu_has_no_policy():
    assert plan(GEMMA_270M, None).policy is None
    with pytest.raises(PlanError, match=r"target\.calibration: only a GPU has attention routes"):
        plan(GEMMA_270M, None, target__calibration="any.json")


def test_a_spec_names_a_file_beside_it(tmp_path):
    changed = layer().model_copy(update={"own": layer().own.model_copy(update={"start": 1e-3})})
    written(tmp_path, layers=[changed.model_dump()])
    found = resolve(spec(target__calibration="calibration.json"), tmp_path)
    assert found.policy.own.start == 1e-3
    assert found.policy.measured


def test_constants_change_no_kernel_but_the_list_builder(tmp_path):
    from dualpace.plan.abi import layout_hash
    from dualpace.render.sources import render

    changed = layer().model_copy(update={"own": layer().own.model_copy(update={"start": 1e-3})})
    written(tmp_path, layers=[changed.model_dump()])
    found = resolve(spec(target__calibration="calibration.json"), tmp_path)
    before, after = render(plan(LLAMA_8B)), render(found)
    assert [path for path in before if before[path] != after[path]] == ["cuda/kernel_costs.cuh"]
    assert layout_hash(found) == layout_hash(plan(LLAMA_8B))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "a100"}, "was measured on a100, not on h200; calibrate on the target"),
        ({"layers": [{"head_dim": 128}]}, "layers.0.gqa_ratio: Field required; run `dualpace calibrate` again"),
        ({"layers": []}, "layers: Tuple should have at least 1 item"),
        ({"more": 1}, "more: Extra inputs are not permitted"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(changes, message, tmp_path):
    with pytest.raises(PlanError) as error:
        resolve_policy(written(tmp_path, **changes), plan(LLAMA_8B).model, plan(LLAMA_8B).target)
    assert "target.calibration: " in str(error.value)
    assert message in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(PlanError, match=r"none\.json: No such file.*run `dualpace calibrate`"):
        resolve(spec(target__calibration="none.json"), tmp_path)


def test_what_is_known_of_the_h200_is_what_its_page_shows():
    measured = json.loads(Path("benchmarks/results/attention_policy.json").read_text())
    layers = [figures["layer"] for figures in measured["results"].values()]
    assert [layer.model_dump(mode="json") for layer in H200.layers] == layers
    assert H200.machine == measured["machine"]
