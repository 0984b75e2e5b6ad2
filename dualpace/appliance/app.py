"""The routes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dualpace.appliance.aside import ARRIVED, ParsingRoute
from dualpace.appliance.counted import Counted
from dualpace.appliance.deployment import Deployment
from dualpace.appliance.dispatch import Dispatcher
from dualpace.appliance.errors import ApiError, failed, from_validation, model_not_found
from dualpace.appliance.generate import Generation
from dualpace.appliance.keys import Keys
from dualpace.appliance.limits import Limits
from dualpace.appliance.metrics import MEDIA_TYPE, metrics_text
from dualpace.appliance.reply import ChatReply, CompletionReply
from dualpace.appliance.responses import ChatCompletion, Completion, ErrorBody, Health, ModelCard, ModelList
from dualpace.appliance.schema import ChatRequest, CompletionRequest, SamplingFields
from dualpace.appliance.stream import Answer, EventStream, Whole
from dualpace.appliance.validate import chat_job, completion_job

ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}
GENERATED: dict[int | str, dict[str, Any]] = ERRORS | {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Whole, or streamed."}
}


def create_app(deployment: Deployment, dispatcher: Dispatcher) -> FastAPI:
    """The HTTP API over one deployment. Its lifespan runs `dispatcher`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with dispatcher:
            yield

    serving = deployment.plan.serving
    keys = Keys(serving.api_key_file, deployment.api_keys)
    app = FastAPI(title=f"DualPace: {deployment.name}", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.router.route_class = ParsingRoute
    app.add_middleware(Limits, keys=keys, max_body=serving.max_body)
    app.add_middleware(Counted, tally=dispatcher.tally)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _api_error)
    app.add_exception_handler(HTTPException, _api_error)
    app.add_exception_handler(Exception, _api_error)
    bearer = Security(HTTPBearer(auto_error=False, description="A key of the deployment."))
    guarded = [bearer] if keys else []
    card = ModelCard(id=deployment.name, created=deployment.created, max_model_len=deployment.max_context)

    def answer(body: SamplingFields, generation: Generation, reply: CompletionReply | ChatReply) -> Answer:
        return EventStream(generation, reply) if body.stream else Whole(generation, reply)

    @app.post("/v1/completions", response_model=Completion, responses=GENERATED, dependencies=guarded)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue a prompt."""
        job = await completion_job(body, deployment)
        reply = CompletionReply(deployment, body.wants_usage)
        return answer(body, Generation(dispatcher, deployment, job, request.scope[ARRIVED]), reply)

    @app.post("/v1/chat/completions", response_model=ChatCompletion, responses=GENERATED, dependencies=guarded)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Continue a chat."""
        job = await chat_job(body, deployment)
        reply = ChatReply(deployment, len(job.choices), body.wants_usage)
        return answer(body, Generation(dispatcher, deployment, job, request.scope[ARRIVED]), reply)

    @app.get("/v1/models", responses=ERRORS, dependencies=guarded)
    async def models() -> ModelList:
        """The served model and its longest context."""
        return ModelList(data=[card])

    @app.get("/v1/models/{model:path}", responses=ERRORS, dependencies=guarded)
    async def model(model: str) -> ModelCard:
        """The served model by name."""
        if model != deployment.name:
            raise model_not_found(model, deployment.name)
        return card

    @app.get("/health", responses={503: {"model": Health}})
    async def health(response: Response) -> Health:
        """Whether a request would be taken now; needs no key."""
        reason = dispatcher.unavailable()
        if reason is None:
            return Health(status="ok")
        response.status_code = 503
        return Health(status="unavailable", reason=reason)

    @app.get("/metrics", responses=ERRORS, response_class=PlainTextResponse, dependencies=guarded)
    async def metrics() -> Response:
        """What engine and frontends count, for Prometheus."""
        ready = dispatcher.unavailable() is None
        text = metrics_text(deployment, dispatcher.status(), ready, dispatcher.tally.totals())
        return Response(text, media_type=MEDIA_TYPE)

    return app


async def _api_error(_: Request, error: Exception) -> JSONResponse:
    """Every failure as the API's error object; what nobody foresaw is logged by the server, not shown."""
    match error:
        case ApiError():
            return error.response()
        case RequestValidationError():
            return from_validation(error.errors()).response()
        case HTTPException():
            return ApiError(error.status_code, str(error.detail)).response()
        case _:
            return failed("an internal error").response()
