"""The API's error object, and every error that the frontend answers with."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.responses import JSONResponse

from dualpace.appliance.responses import Error, ErrorBody
from dualpace.appliance.schema import FIELDS, UNSUPPORTED

RETRY_AFTER_S = 1
CLIENT_GONE = 499


@dataclass(eq=False)
class ApiError(Exception):
    """An answer other than success: the HTTP status and the fields of the error object. Never holds prompt text.

    `retry_after` is in seconds, and sent with the statuses that pass by themselves.
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    retry_after: int = RETRY_AFTER_S

    def body(self) -> ErrorBody:
        """The error object, the same in a response and in an event of a stream."""
        return ErrorBody(error=Error(message=self.message, type=self.kind, param=self.param, code=self.code))

    def response(self) -> JSONResponse:
        """The error as a whole HTTP response."""
        headers = {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.status in (429, 503):
            headers["Retry-After"] = str(self.retry_after)
        return JSONResponse(self.body().model_dump(), self.status, headers)


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request is wrong and stays wrong."""
    return ApiError(400, message, param=param, code=code)


def context_exceeded(limit: int, prompt: int, completion: int, param: str, *, at_least: bool) -> ApiError:
    """400 in the field's usual wording, which clients match on; counts are in tokens, `param` holds the prompt."""
    about = "at least " if at_least else ""
    return invalid(
        f"This model's maximum context length is {limit} tokens. However, you requested {about}{prompt + completion} "
        f"tokens ({about}{prompt} in the {param}, {completion} in the completion). "
        f"Please reduce the length of the {param} or completion.",
        param=param,
        code="context_length_exceeded",
    )


def model_not_found(asked: str, served: str) -> ApiError:
    """404 for a model other than the served one."""
    message = f"The model '{asked}' does not exist; this server has '{served}'."
    return ApiError(404, message, param="model", code="model_not_found")


def check_model(asked: str | None, served: str) -> None:
    """Raise ApiError if a model was asked for and is not the served one."""
    if asked is not None and asked != served:
        raise model_not_found(asked, served)


def too_large(status: int, part: str, limit: int) -> ApiError:
    """413 or 431: a part of the request is larger than so many bytes."""
    return ApiError(
        status, f"The request {part} is larger than {limit} bytes, the limit of this server.", code=f"{part}_too_large"
    )


def too_slow(part: str, limit: float) -> ApiError:
    """408: a part of the request has not come within so many seconds."""
    return ApiError(
        408, f"The request {part} took longer than {limit:g} s, the limit of this server.", code=f"{part}_too_slow"
    )


def queue_full(what: str) -> ApiError:
    """429: the deployment has as much under way as it may; `what` is a clause that names the limit."""
    message = f"The queue is full: {what}. Try again in a moment."
    return ApiError(429, message, kind="rate_limit_error", code="queue_full")


def rate_limited(what: str, retry_after: int) -> ApiError:
    """429: the key has as much as it may; `what` is a sentence that names the limit, without a full stop."""
    return ApiError(429, f"{what}.", kind="rate_limit_error", code="rate_limit_exceeded", retry_after=retry_after)


def unavailable(reason: str) -> ApiError:
    """503: nothing can be generated now; `reason` is a clause without a full stop."""
    return ApiError(503, f"The service is unavailable: {reason}.", kind="server_error", code="unavailable")


def failed(reason: str) -> ApiError:
    """500: this request failed inside the server; `reason` is a clause without a full stop."""
    return ApiError(500, f"The request failed: {reason}.", kind="server_error", code="generation_failed")


def client_gone() -> ApiError:
    """Ends the work for a client that has left; it is never read."""
    return ApiError(CLIENT_GONE, "The client closed the connection.")


def from_validation(errors: Sequence[Any]) -> ApiError:
    """400 for a body that does not fit its schema, without the input.

    Of pydantic's errors the first of a field that is not served, for no other value would help; or else the first.
    """
    first = next((error for error in errors if any(map(_unsupported, _known(error["loc"])))), errors[0])
    kind, location = first["type"], first["loc"]
    if not location:
        return invalid("The request body must be a JSON object whose field names are valid text.")
    if kind == "missing":
        return invalid(f"Missing required parameter: '{_path(location)}'.", _path(location))
    if kind == "extra_forbidden":
        return invalid(f"Unrecognized request argument supplied: '{_path(location)}'.", _path(location))
    known = _known(location)
    for end, part in enumerate(known, 1):
        if unsupported := _unsupported(part):
            path = _path(known[:end])
            return invalid(f"'{path}' is not supported: this server has no {unsupported}. Leave it out.", path)
    path = _path(known)
    if len(known) < len(location) and kind != "surrogate":
        field = FIELDS[next(part for part in reversed(known) if isinstance(part, str))]
        return invalid(f"'{path}' is not valid. It takes: {field.description}", path)
    return invalid(f"'{path}' is not valid: {first['msg'][0].lower()}{first['msg'][1:]}.", path)


def _known(location: Sequence[str | int]) -> list[str | int]:
    """The fields of a location. Where one takes several types, it goes on with the name of the type that was tried."""
    return list(itertools.takewhile(lambda part: isinstance(part, int) or part in FIELDS, location))


def _unsupported(part: str | int) -> str | None:
    """What a field of that name would ask for, if it is known and not served."""
    extra = FIELDS[part].json_schema_extra if isinstance(part, str) else None
    return str(extra[UNSUPPORTED]) if isinstance(extra, dict) else None


def _path(location: Sequence[str | int]) -> str:
    """`messages[0].content`, in characters that any encoding can carry."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return path.removeprefix(".").encode("ascii", "backslashreplace").decode()
