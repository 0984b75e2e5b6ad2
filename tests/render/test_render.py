"""A plan becomes sources: which, with what text, and how a template's fault is told."""

from pathlib import Path

import pytest

from dualpace.render.sources import TEMPLATES, RenderError, render, template_of
from tests.plans import example
from tests.render.golden import GOLDEN, NAMES, seams

SPARSE = {"mode": "recall", "selection": {"blocks": 256}}


@pytest.mark.parametrize("name", NAMES)
def test_rendered_files_are_as_reviewed(name):
    folder = GOLDEN / name
    reviewed = {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()}
    assert seams(name) == reviewed


@pytest.mark.parametrize("name", NAMES)
def test_a_rendered_file_says_for_which_deployment(name):
    for path, text in seams(name).items():
        assert text.startswith(f'// {path}.j2 for the deployment "{name}": ')


def test_everything_that_is_not_jinja_is_copied():
    sources = render(example("quickstart"))
    for path in set(sources) - set(seams("quickstart")):
        assert sources[path] == (TEMPLATES / path).read_text()


def test_only_cuda_targets_get_cuda_sources():
    folders = {
        name: {path.split("/")[0] for path in render(example(name))} for name in ("quickstart", "qwen3-14b-h100")
    }
    assert folders == {"quickstart": {"common", "host"}, "qwen3-14b-h100": {"common", "host", "cuda"}}


def test_only_plans_with_kv_in_host_memory_get_what_moves_it_and_only_sparse_ones_what_chooses():
    moving, choosing = {"host/slow_lane.cpp", "cuda/transfer.cu"}, {"cuda/recall.cu"}
    assert (moving | choosing).isdisjoint(render(example("llama-3.1-8b-h200")))
    exact = set(render(example("llama-3.1-8b-128k-offload")))
    assert moving <= exact
    assert choosing.isdisjoint(exact)
    assert moving | choosing <= set(render(example("llama-3.1-8b-128k-offload", offload=SPARSE)))


def test_the_same_plan_gives_the_same_text():
    assert render(example("quickstart")) == render(example("quickstart"))


CHANGES = {
    "gqa ratio": {"shape": {"heads": 8}, "attention": {"gqa_ratio": 8}},
    "head_dim": {"shape": {"head_dim": 128}},
    "page size": {"attention": {"page_size": 32}},
    "dtype": {"model": {"dtype": "fp32"}},
    "window": {"shape": {"sliding_window": 1024}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_kernels_depend_on_changes_their_constants(change):
    before, after = render(example("quickstart")), render(example("quickstart", **CHANGES[change]))
    assert before["common/config.hpp"] != after["common/config.hpp"]


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    for folder in ("common", "host"):
        (tmp_path / folder).mkdir()
    return tmp_path


def test_a_name_that_nothing_defines_fails(templates):
    (templates / "common" / "a.hpp.j2").write_text("// one\n// {{ plan.nmae }}\n")
    with pytest.raises(RenderError, match=r"^dualpace/templates/common/a\.hpp\.j2:2: .*nmae"):
        render(example("quickstart"), templates)


def test_a_syntax_error_names_template_and_line(templates):
    (templates / "common" / "a.hpp.j2").write_text("\n\n{% if %}\n")
    with pytest.raises(RenderError, match=r"^dualpace/templates/common/a\.hpp\.j2:3: "):
        render(example("quickstart"), templates)


def test_a_value_that_is_no_literal_fails(templates):
    (templates / "host" / "a.cpp.j2").write_text("int x = {{ plan.name | cpp }};\n")
    with pytest.raises(RenderError, match=r"^dualpace/templates/host/a\.cpp\.j2:1: 'quickstart' is neither"):
        render(example("quickstart"), templates)


def test_the_template_behind_a_source():
    assert template_of("common/config.hpp") == "dualpace/templates/common/config.hpp.j2"
    assert template_of("host/ring.cpp") == "dualpace/templates/host/ring.cpp"
