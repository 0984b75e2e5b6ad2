"""The routes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Security
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from dualpace.appliance.access import Access
from dualpace.appliance.bodies import ARRIVED, Bodies, endpoints
from dualpace.appliance.deployment import Deployment
from dualpace.appliance.dispatch import Dispatcher
from dualpace.appliance.errors import ApiError, model_not_found
from dualpace.appliance.generate import Generation
from dualpace.appliance.keys import Keys
from dualpace.appliance.ledger import Ledger
from dualpace.appliance.limits import Limits
from dualpace.appliance.log import report_of
from dualpace.appliance.openapi import describe, errors, generated
from dualpace.appliance.operations import add_operations
from dualpace.appliance.reply import ChatReply, CompletionReply
from dualpace.appliance.responses import ChatChunk, ChatCompletion, Completion, ModelCard, ModelList
from dualpace.appliance.schema import ChatRequest, CompletionRequest, SamplingFields
from dualpace.appliance.stream import Answer, EventStream, Whole
from dualpace.appliance.tokenization import add_tokenization
from dualpace.appliance.validate import Job, chat_job, completion_job


def create_app(deployment: Deployment, dispatcher: Dispatcher, ledger: Ledger | None = None) -> FastAPI:
    """The HTTP API over one deployment. Its lifespan runs `dispatcher`; `ledger` has what its keys use elsewhere."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watch = asyncio.create_task(keys.watch())
        async with dispatcher:
            yield
        watch.cancel()

    serving = deployment.plan.serving
    keys = Keys(serving.api_key_file, deployment.api_keys, ledger or Ledger())
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    app.router.route_class = _Route
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _api_error)
    bearer = Security(HTTPBearer(auto_error=False, description="A key of the deployment."))
    guarded = [bearer] if keys else []
    card = ModelCard(id=deployment.name, created=deployment.created, max_model_len=deployment.max_context)

    def answer(body: SamplingFields, job: Job, reply: CompletionReply | ChatReply, scope: Scope) -> Answer:
        if body.user:
            report_of(scope)["user"] = body.user
        generation = Generation(dispatcher, deployment, job, scope[ARRIVED])
        return EventStream(generation, reply) if body.stream else Whole(generation, reply)

    @app.post("/v1/completions", response_model=Completion, responses=generated(Completion), dependencies=guarded)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue a prompt."""
        dispatcher.check_room()
        job = await completion_job(body, deployment)
        reply = CompletionReply(deployment, body.wants_usage)
        return answer(body, job, reply, request.scope)

    @app.post(
        "/v1/chat/completions", response_model=ChatCompletion, responses=generated(ChatChunk), dependencies=guarded
    )
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Continue a chat."""
        dispatcher.check_room()
        job = await chat_job(body, deployment)
        reply = ChatReply(deployment, len(job.choices), body.wants_usage)
        return answer(body, job, reply, request.scope)

    @app.get("/v1/models", responses=errors(), dependencies=guarded)
    async def models() -> ModelList:
        """The served model and its longest context."""
        return ModelList(data=[card])

    @app.get("/v1/models/{model:path}", responses=errors(404), dependencies=guarded)
    async def model(model: str) -> ModelCard:
        """The served model by name."""
        if model != deployment.name:
            raise model_not_found(model, deployment.name)
        return card

    add_tokenization(app, deployment, guarded)
    add_operations(app, deployment, dispatcher, guarded)
    served = endpoints(app.routes)
    app.add_middleware(Bodies, served=served, refusal=_refusal)
    app.add_middleware(Limits, keys=keys, max_body=serving.max_body, log=serving.log, paths=served.keys())
    app.add_middleware(Access, log=serving.log, tally=dispatcher.tally)
    describe(app, deployment, events=(Completion, ChatChunk))
    return app


class _Route(APIRoute):
    """HEAD is answered as GET is; the server leaves the body out."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether the route is for this request."""
        return super().matches(_as_get(scope))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        await super().handle(_as_get(scope), receive, send)


def _as_get(scope: Scope) -> Scope:
    return {**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope


def _refusal(scope: Scope, error: ApiError) -> JSONResponse:
    report_of(scope)["error"] = error.message
    return error.response()


async def _api_error(request: Request, error: Exception) -> JSONResponse:
    """Every refusal as the API's error object."""
    response = _refusal(request.scope, _told(request, error))
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
    return response


def _told(request: Request, error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case HTTPException(status_code=404):
            message = f"There is no {request.url.path} here; /openapi.json has all there is."
            return ApiError(404, message, code="unknown_url")
        case HTTPException(status_code=405):
            allowed = (error.headers or {}).get("Allow")
            return ApiError(405, f"{request.method} is not served at {request.url.path}; {allowed} is.")
    assert isinstance(error, HTTPException)  # no other kind is handed over
    return ApiError(error.status_code, str(error.detail))
