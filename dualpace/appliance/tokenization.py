"""`/tokenize` and `/detokenize`: what a prompt becomes, as vLLM's routes of these names have it.

A text may be far longer than any prompt, so all that grows with it is done aside, up to the answer's last byte.
"""

from typing import Any

from fastapi import FastAPI
from pydantic_core import to_json
from starlette.responses import Response

from dualpace.appliance.aside import aside
from dualpace.appliance.deployment import Deployment
from dualpace.appliance.errors import check_model, invalid
from dualpace.appliance.openapi import BODY_ERRORS
from dualpace.appliance.responses import Detokenized, Tokenized
from dualpace.appliance.schema import DetokenizeRequest, TokenizeRequest
from dualpace.appliance.validate import characters_of, check_ids, plain
from dualpace.model.chat import ChatError
from dualpace.model.tokenizer import Tokenizer

# Characters of a text, and ids of a list: more is for a tokenizer beside the client, which takes gigabytes for it.
MOST_CHARACTERS = MOST_IDS = 1 << 20


def add_tokenization(app: FastAPI, deployment: Deployment, guarded: list[Any]) -> None:
    """Add the routes to `app`; `guarded` is what keeps others out."""

    @app.post("/tokenize", response_model=Tokenized, responses=BODY_ERRORS, dependencies=guarded)
    async def tokenize(body: TokenizeRequest) -> Response:
        """The token ids of a text, or of a chat as the model's template writes it."""
        check_model(body.model, deployment.name)
        tokenizer = deployment.tokenizer
        if tokenizer is None:
            raise invalid(f"The model '{deployment.name}' has no tokenizer; it takes token ids.")
        characters = _characters(body)
        if characters > MOST_CHARACTERS:
            field = "prompt" if body.messages is None else "messages"
            raise invalid(
                f"This has {characters} characters, and at most {MOST_CHARACTERS} are tokenised at once.", field
            )

        def answer() -> bytes:
            tokens = _tokens(body, deployment, tokenizer)
            texts = [tokenizer.token_text(token) or "" for token in tokens] if body.return_token_strs else None
            limit = deployment.max_context
            return to_json(
                Tokenized.model_construct(count=len(tokens), max_model_len=limit, tokens=tokens, token_strs=texts)
            )

        try:
            return _json(await aside(answer, characters))
        except ChatError as error:
            raise invalid(str(error), "messages") from error

    @app.post("/detokenize", response_model=Detokenized, responses=BODY_ERRORS, dependencies=guarded)
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text of token ids, without special tokens."""
        check_model(body.model, deployment.name)
        if len(body.tokens) > MOST_IDS:
            raise invalid(
                f"These are {len(body.tokens)} ids, and at most {MOST_IDS} are detokenised at once.", "tokens"
            )

        def answer() -> bytes:
            check_ids(body.tokens, deployment, "tokens")
            return to_json(Detokenized(prompt=deployment.text_of(body.tokens)))

        return _json(await aside(answer, len(body.tokens)))


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _characters(body: TokenizeRequest) -> int:
    return len(body.prompt or "") + characters_of(map(plain, body.messages or ()))


def _tokens(body: TokenizeRequest, deployment: Deployment, tokenizer: Tokenizer) -> list[int]:
    if body.messages is None:
        if body.prompt is None:
            raise invalid("One of 'prompt' and 'messages' is needed.", "prompt")
        if body.add_generation_prompt is not None:
            raise invalid("'add_generation_prompt' needs 'messages'.", "add_generation_prompt")
        return tokenizer.encode(body.prompt, add_special=body.add_special_tokens is not False)
    if body.prompt is not None:
        raise invalid("Send 'prompt' or 'messages', not both.", "prompt")
    text = deployment.chat.render(
        [plain(message) for message in body.messages],
        add_generation_prompt=body.add_generation_prompt is not False,
    )
    # The template writes special tokens itself.
    return tokenizer.encode(text, add_special=body.add_special_tokens is True)
