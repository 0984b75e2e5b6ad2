"""What a server says of itself."""

import http.client
import json
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

from dualpace.address import unreached

PATIENCE_S = 10.0


class ServerError(Exception):
    """A server that is not there or does not speak the API."""


class Described(NamedTuple):
    """The model that it serves, its longest context if it tells, and the name of the software if it does."""

    model: str
    max_context: int | None
    software: str


def encryption(certificate: str | None) -> ssl.SSLContext:
    """TLS with a server that a known authority vouches for, or one with the certificate of that PEM file."""
    context = ssl.create_default_context(cafile=certificate)
    if certificate is not None:
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an authority's certificate is not in the file
    return context


def describe(url: str, key: str, certificate: str | None = None) -> Described:
    """Ask the server at `url`, with or without /v1, what it serves. Raises ServerError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ServerError(f"{url} is no address of a server: write it like http://127.0.0.1:8000")
    secure = parts.scheme == "https"
    connection = (
        http.client.HTTPSConnection(parts.hostname, parts.port, timeout=PATIENCE_S, context=encryption(certificate))
        if secure
        else http.client.HTTPConnection(parts.hostname, parts.port, timeout=PATIENCE_S)
    )
    path = f"{parts.path.rstrip('/').removesuffix('/v1')}/v1/models"
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        response = connection.getresponse()
        body = response.read()
        if response.status != http.HTTPStatus.OK:
            keyless = response.status == http.HTTPStatus.UNAUTHORIZED
            remedy = "; name a key with --api-key or OPENAI_API_KEY" if keyless else ""
            raise ServerError(f"{url} answers {response.status} {response.reason} for {path}{remedy}")
        card = json.loads(body)["data"][0]
        return Described(str(card["id"]), card.get("max_model_len"), response.headers.get("server", ""))
    except (OSError, http.client.HTTPException) as error:
        raise ServerError(f"{url} cannot be reached: {unreached(error)}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ServerError(f"{url} does not list its models: is it an OpenAI-compatible server?") from error
    finally:
        connection.close()
