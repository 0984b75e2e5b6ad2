"""The routes of those who run a deployment: whether it lives, what it does, which version it is."""

from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, PlainTextResponse
from starlette.responses import Response

from dualpace import __version__
from dualpace.appliance.deployment import Deployment
from dualpace.appliance.dispatch import Dispatcher
from dualpace.appliance.metrics import MEDIA_TYPE, metrics_text
from dualpace.appliance.openapi import UNHEALTHY, errors
from dualpace.appliance.responses import Health, Version
from dualpace.appliance.status_page import render_page


def add_operations(app: FastAPI, deployment: Deployment, dispatcher: Dispatcher, guarded: list[Any]) -> None:
    """Add the routes to `app`; `guarded` is what keeps others out, but for those of health."""

    def health_of(reason: str | None, response: Response) -> Health:
        if reason is None:
            return Health(status="ok")
        response.status_code = 503
        return Health(status="unavailable", reason=reason)

    page = render_page(deployment)
    headers = {"Content-Security-Policy": page.policy, "X-Content-Type-Options": "nosniff"}

    @app.get("/", response_class=HTMLResponse, responses=errors(), dependencies=guarded)
    async def status_page() -> Response:
        """The deployment at a glance, for people."""
        return HTMLResponse(page.html, headers=headers)

    @app.get("/health", responses=UNHEALTHY)
    @app.get("/health/ready", responses=UNHEALTHY)
    async def ready(response: Response) -> Health:
        """Whether a request would be taken now; needs no key."""
        return health_of(dispatcher.unavailable(), response)

    @app.get("/health/live", responses=UNHEALTHY)
    async def live(response: Response) -> Health:
        """Whether waiting can help, or only a new process; needs no key."""
        return health_of(dispatcher.hung(), response)

    @app.get("/version", responses=errors(), dependencies=guarded)
    async def version() -> Version:
        """The version of DualPace, and what identifies the bundle."""
        return Version(version=__version__, system_fingerprint=deployment.fingerprint)

    @app.get(
        "/metrics",
        response_class=PlainTextResponse,
        responses=errors(),
        dependencies=guarded,
    )
    async def metrics() -> Response:
        """What engine and frontends count, for Prometheus."""
        available = dispatcher.unavailable() is None
        text = metrics_text(deployment, dispatcher.status(), available, dispatcher.tally.totals(), dispatcher.traffic)
        return Response(text, media_type=MEDIA_TYPE)
