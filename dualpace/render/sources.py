"""The one way from a plan to source texts. Templates are data of the package; nothing else is read."""

import traceback
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from jinja2 import Environment, FunctionLoader, StrictUndefined, TemplateError

from dualpace.plan.abi import structs_text
from dualpace.plan.plan import Plan
from dualpace.plan.program import rotates, streams
from dualpace.plan.structs import ITEM_SPLITS
from dualpace.render.filters import cpp, f32

TEMPLATES = files("dualpace") / "templates"
FOLDERS = {"cpu": ("common", "host"), "cuda": ("common", "host", "cuda")}
RENDERED = ".j2"
FLASHINFER = "cuda/attention_flashinfer.cu"
PREFILL = ("cuda/prefill.cu", "cuda/prefill_tasks.cu")
WGMMA = "cuda/wgmma.cuh"
OFFLOAD = ("host/slow_lane.cpp", "cuda/transfer.cu", "cuda/transfer.cuh")
SELECTION = ("cuda/recall.cu", "cuda/summaries.cu")
COOPERATIVE = ("common/cooperate.hpp", "common/division.hpp", "host/worker.hpp", "host/workers.cpp")


class RenderError(Exception):
    """A template that cannot be rendered; the message names the template, the line and the fault."""


def render(plan: Plan, templates: Traversable = TEMPLATES) -> dict[str, str]:
    """Source path -> text, for the target of `plan`.

    Templates that end in `.j2` are rendered under the path without it, with a header that says for which
    deployment; everything else is copied, but FlashInfer's route, and what prefill, offload and selection need, only to
    plans that have them. The same plan gives the same text. Raises RenderError.
    """
    environment = _environment(templates)
    context = {
        "plan": plan,
        "model": plan.model,
        "step_tokens": max(program.tokens for program in plan.schedule.programs),
        "step_samples": max(program.samples for program in plan.schedule.programs),
        "streamed": [program.rows for program in plan.schedule.programs if streams(plan.model, program)],
        "rotates": rotates(plan.model),
        "structs": structs_text(plan),
        "item_splits": ITEM_SPLITS,
    }
    sources = {}
    omitted = _omitted(plan)
    for folder in FOLDERS[plan.target.kind]:
        for template, text in _texts(templates / folder, folder):
            path = template.removesuffix(RENDERED)
            if path in omitted:
                continue
            if path != template:
                text = _header(plan, template) + _fill(environment, template, context)
            sources[path] = text
    return sources


def _omitted(plan: Plan) -> set[str]:
    attention = plan.attention
    omitted = {FLASHINFER} if attention.flashinfer == "none" else set()
    if attention.prefill == "tokens":
        omitted.update(PREFILL)
    if attention.prefill != "wgmma":
        omitted.add(WGMMA)
    if plan.offload.mode == "off":
        omitted.update(OFFLOAD)
    if not plan.offload.sparse_blocks:
        omitted.update(SELECTION)
    if plan.offload.mode != "cooperative":
        omitted.update(COOPERATIVE)
    return omitted


def template_of(source: str, templates: Traversable = TEMPLATES) -> str:
    """The template behind the rendered path `source`, as a path in the package."""
    rendered = templates.joinpath(*f"{source}{RENDERED}".split("/"))
    return f"dualpace/templates/{source}{RENDERED if rendered.is_file() else ''}"


def _texts(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_file():
            yield f"{prefix}/{entry.name}", entry.read_text(encoding="utf-8")


def _header(plan: Plan, template: str) -> str:
    model = plan.model
    return (
        f'// {template} for the deployment "{plan.name}": {model.family} in {model.dtype}, '
        f"GQA ratio {model.gqa_ratio},\n"
        f"// head_dim {model.head_dim}, pages of {plan.attention.page_size} tokens, on {plan.target.name}.\n"
    )


def _environment(templates: Traversable) -> Environment:
    def load(name: str) -> tuple[str, str, None]:
        return templates.joinpath(*name.split("/")).read_text(encoding="utf-8"), name, None

    environment = Environment(
        loader=FunctionLoader(load),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(f32=f32, cpp=cpp)
    return environment


def _fill(environment: Environment, template: str, context: dict[str, object]) -> str:
    try:
        return environment.get_template(template).render(context)
    except (TemplateError, TypeError, ValueError) as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == template]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else 1)
        raise RenderError(f"dualpace/templates/{template}:{line}: {error}") from error
