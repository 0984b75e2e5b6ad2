"""The API's own description: what FastAPI makes of the routes, with what types alone do not say."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter

from dualpace import __version__
from dualpace.appliance.deployment import Deployment
from dualpace.appliance.responses import ErrorBody, Health
from dualpace.appliance.schema import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

Responses = dict[int | str, dict[str, Any]]

_WHY = {
    400: "The request is wrong: the error names the field and the limit.",
    401: "There are API keys, and none of them was sent.",
    404: "There is no such model.",
    408: "The body did not come to its end in time.",
    413: "The body is too large.",
    415: "The body is not said to be JSON.",
    429: "The queue is full, or the key has as much as it may.",
    500: "The request failed inside the server.",
    503: "Nothing can be generated now.",
}
_COMPONENTS = "#/components/schemas/{model}"


def errors(*statuses: int) -> Responses:
    """How a route describes its errors beside those that every route has."""
    every = sorted({*statuses, 401, 500})
    return {status: {"model": ErrorBody, "description": _WHY[status]} for status in every}


# Of a route that takes a body.
BODY_ERRORS = errors(400, 404, 408, 413, 415, 429)
UNHEALTHY: Responses = {503: {"model": Health, "description": "Not so, and why."}}


def generated(event: type[BaseModel]) -> Responses:
    """Of a route that generates: one body, or a stream of `event`."""
    data = {"anyOf": [{"$ref": _COMPONENTS.format(model=model.__name__)} for model in (event, ErrorBody)]}
    # As is usual before OpenAPI 3.2, the schema is that of each event.
    one = {
        "type": "object",
        "description": "The error object comes where something fails. The last event has the data `[DONE]`.",
        "properties": {
            "data": {
                "anyOf": [
                    {"type": "string", "contentMediaType": "application/json", "contentSchema": data},
                    {"const": "[DONE]"},
                ]
            }
        },
        "required": ["data"],
    }
    whole = {
        "description": "Whole, or streamed if `stream` is true.",
        "content": {"text/event-stream": {"schema": one}},
    }
    return BODY_ERRORS | errors(503) | {200: whole}


def describe(app: FastAPI, deployment: Deployment, events: tuple[type[BaseModel], ...]) -> None:
    """Let `app` describe itself truly; `events` are what its streams are made of."""

    def description() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _description(app, deployment, events)
        return app.openapi_schema

    app.openapi = description  # type: ignore[method-assign]


def _description(app: FastAPI, deployment: Deployment, events: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    made = get_openapi(
        title=f"DualPace: {deployment.name}",
        version=__version__,
        summary="The OpenAI API, as far as this server has it.",
        description="Null for an optional field means omitted. A field that is not here is an error. "
        "Errors have the status that fits and the body ErrorBody.",
        routes=app.routes,
    )
    schemas = made["components"]["schemas"]
    for event in events:
        schema = TypeAdapter(event).json_schema(ref_template=_COMPONENTS, mode="serialization")
        schemas |= schema.pop("$defs", {}) | {event.__name__: schema}
    for request in (CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest):
        model = schemas[request.__name__]["properties"]["model"]
        for text in (model, *model.get("anyOf", ())):
            if text.get("type") == "string":
                text["enum"] = [deployment.name]
    # What FastAPI would answer by itself, and what is only answered where there are keys.
    never = ["422"] if deployment.api_keys else ["422", "401"]
    for item in made["paths"].values():
        for operation in item.values():
            for status in never:
                operation["responses"].pop(status, None)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    return made
