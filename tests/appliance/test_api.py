"""Models, keys and the API's own description."""

import json
import re
from pathlib import Path

import jsonschema
import openai
import pytest

from dualpace import __version__
from dualpace.appliance.deployment import load
from dualpace.plan.manifest import BundleError

from .bundles import CONTEXT, write_bundle
from .conftest import Frontend, ServeToy


def test_the_model_is_listed_with_its_context(toy: Frontend):
    (model,) = toy.openai.models.list().data
    assert (model.id, model.object, model.max_model_len) == ("toy", "model", CONTEXT)
    assert toy.openai.models.retrieve("toy") == model


def test_a_name_of_its_own_may_hold_a_slash(serve: ServeToy):
    toy = serve(model_name="org/name")
    assert toy.openai.models.retrieve("org/name").id == "org/name"


def test_keys_guard_everything_but_health(serve: ServeToy, tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("first\n\n  second \n")
    toy = serve(api_key_file=str(keys))
    assert toy.openai.models.list().data
    assert toy.openai.with_options(api_key="second").models.list().data
    for open_path in ("/health", "/health/live", "/health/ready"):
        assert toy.http.get(open_path).status_code == 200
    for headers in ({}, {"Authorization": "Bearer firs"}, {"Authorization": "Basic first"}, {"Authorization": "first"}):
        response = toy.http.post("/v1/completions", content=b"not read", headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    with pytest.raises(openai.AuthenticationError):
        toy.openai.with_options(api_key="third").models.list()
    for path in ("/openapi.json", "/metrics", "/version", "/nothing"):
        assert toy.http.get(path).status_code == 401


@pytest.mark.parametrize("text", [None, "\n \n"])
def test_a_key_file_without_keys_does_not_open_the_server(tmp_path: Path, text: str | None):
    keys = tmp_path / "keys"
    if text is not None:
        keys.write_text(text)
    bundle = write_bundle(tmp_path / "bundle", api_key_file=str(keys))
    with pytest.raises(BundleError, match=r"serving\.api_key_file"):
        load(bundle)


def test_a_bundle_without_generation_defaults_names_the_file(tmp_path: Path):
    bundle = write_bundle(tmp_path / "bundle")
    (bundle / "model/generation.json").unlink()
    with pytest.raises(BundleError, match=r"generation\.json.*build the spec again"):
        load(bundle)


def test_the_version_names_the_bundle_as_answers_do(toy: Frontend):
    version = toy.http.get("/version").json()
    assert version["version"] == __version__
    answer = toy.openai.completions.create(model="toy", prompt="x", max_tokens=1)
    assert version["system_fingerprint"] == answer.system_fingerprint


def _operations(description: dict) -> dict[str, dict]:
    return {path: operation for path, item in description["paths"].items() for operation in item.values()}


def test_the_description_names_every_route_and_no_answer_that_is_never_given(toy: Frontend):
    operations = _operations(toy.http.get("/openapi.json").json())
    assert set(operations) == {
        "/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/{model}", "/health", "/health/live",
        "/health/ready", "/", "/metrics", "/tokenize", "/detokenize", "/version",
    }  # fmt: skip
    assert all("422" not in operation["responses"] for operation in operations.values())
    assert "401" not in operations["/v1/completions"]["responses"]
    assert set(operations["/health/live"]["responses"]) == {"200", "503"}


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/v1/models", "/v1/models/toy", "/openapi.json"])
def test_head_is_get_without_a_body(toy: Frontend, path: str):
    asked, told = toy.http.get(path), toy.http.head(path)
    assert told.status_code == 200
    assert told.content == b""
    assert told.headers["content-type"] == asked.headers["content-type"]
    assert int(told.headers["content-length"]) > 0
    assert toy.http.head("/v1/completions").status_code == 405
    assert toy.http.head("/nothing").status_code == 404


def test_what_the_description_refers_to_is_in_it(toy: Frontend):
    text = toy.http.get("/openapi.json").text
    schemas = json.loads(text)["components"]["schemas"]
    referred = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert referred == set(schemas)


def test_the_page_on_serving_names_every_route(toy: Frontend):
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    for path, item in toy.http.get("/openapi.json").json()["paths"].items():
        for method in item:
            assert f"`{method.upper()} {path}`" in page


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x y", "logprobs": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "n": 2}),
    ],
)
def test_events_are_what_the_description_says(toy: Frontend, path: str, body: dict):
    description = toy.http.get("/openapi.json").json()
    streamed = _operations(description)[path]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    data, end = streamed["properties"]["data"]["anyOf"]
    assert end == {"const": "[DONE]"}
    validator = jsonschema.Draft202012Validator(data["contentSchema"] | {"components": description["components"]})
    body = body | {"model": "toy", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 4}
    *events, done, _ = toy.http.post(path, json=body).text.split("\n\n")
    assert done == "data: [DONE]"
    assert len(events) >= 2
    for event in events:
        validator.validate(json.loads(event.removeprefix("data: ")))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "toy", "prompt": ["x", "y"], "n": 2, "echo": True}),
        ("/v1/completions", {"model": "toy", "prompt": "x", "logprobs": 2}),
        ("/v1/completions", {"model": "toy", "prompt": "x y z", "logprobs": 2, "echo": True, "max_tokens": 0}),
        ("/v1/completions", {"model": "toy", "prompt": ""}),
        ("/v1/chat/completions", {"model": "toy", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
        (
            "/v1/chat/completions",
            {"model": "toy", "messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 3},
        ),
    ],
)
def test_answers_are_what_the_description_says(toy: Frontend, path: str, body: dict):
    description = toy.http.get("/openapi.json").json()
    response = toy.http.post(path, json=body)
    responses = _operations(description)[path]["responses"]
    schema = responses[str(response.status_code)]["content"]["application/json"]["schema"]
    jsonschema.validate(response.json(), schema | {"components": description["components"]})


def test_the_description_refuses_what_the_server_refuses(toy: Frontend):
    description = toy.http.get("/openapi.json").json()
    schema = {"$ref": "#/components/schemas/CompletionRequest", "components": description["components"]}
    validator = jsonschema.Draft202012Validator(schema)
    good = {"model": "toy", "prompt": "x"}
    assert validator.is_valid(good)
    for bad in (
        {"best_of": 2},
        {"logit_bias": {"5": 101}},
        {"temperature": 3},
        {"presence_penalty": 3},
        {"other": 1},
        {"model": "x"},
    ):
        assert not validator.is_valid(good | bad)
