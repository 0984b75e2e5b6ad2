"""The status page as it is sent."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

from .conftest import Frontend, ServeToy


def test_its_policy_lets_nothing_in_but_what_it_brings(toy: Frontend):
    response = toy.http.get("/")
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for element in ("style", "script"):
        [inside] = re.findall(f"<{element}>(.*?)</{element}>", response.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert not re.search(r'(?:src|href)="(?:https?:)?//', response.text)


def test_each_id_is_of_one_element(toy: Frontend):
    ids = re.findall(r' id="([^"]*)"', toy.http.get("/").text)
    assert len(ids) > 10
    assert len(set(ids)) == len(ids)


def test_a_name_is_text_wherever_it_stands(serve: ServeToy):
    name = '</script><img src="x" onerror="alert(1)">'
    text = serve(model_name=name).http.get("/").text
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)
    parser.feed(text)
    assert "img" not in tags
    assert "&lt;img" in text


def test_a_browser_is_asked_for_a_key_and_may_send_it_as_a_password(serve: ServeToy, tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("first\n")
    toy = serve(api_key_file=str(keys))
    refused = toy.http.get("/")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Basic ")
    for path in ("/", "/metrics", "/v1/models"):
        assert toy.http.get(path, auth=("anyone", "first")).status_code == 200
        assert toy.http.get(path, auth=("first", "anyone")).status_code == 401
        assert toy.http.get(path, headers={"Authorization": "Basic %%%"}).status_code == 401


def test_a_model_without_a_tokenizer_is_given_ids(serve: ServeToy):
    assert "Token ids to continue" in serve(with_tokenizer=False).http.get("/").text


def test_a_model_without_a_chat_template_continues_a_text(serve: ServeToy):
    assert "A text to continue" in serve(template=None).http.get("/").text
