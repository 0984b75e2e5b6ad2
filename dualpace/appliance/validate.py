"""From a request's fields to what enters the rings. The engine can refuse nothing, so all is checked here."""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from dualpace.appliance.aside import aside
from dualpace.appliance.deployment import Deployment
from dualpace.appliance.errors import check_model, context_exceeded, invalid
from dualpace.appliance.schema import MOST_PRIORITY, ChatRequest, CompletionRequest, Message, SamplingFields
from dualpace.engine.ring import SamplingParams
from dualpace.model.chat import ChatError
from dualpace.plan.structs import MAX_STOP_TOKENS

COMPLETION_TOKENS = 16
SEEDS = 2**64


@dataclass(frozen=True, slots=True)
class Job:
    """What one HTTP request asks of the engine: for each choice a prompt and its parameters, `n` in a row a prompt.

    `prefixes` is the text that each choice begins with; `continues` says that its tokens go on from other text.
    """

    choices: tuple[tuple[Sequence[int], SamplingParams], ...]
    n: int
    stops: tuple[str, ...]
    prefixes: tuple[str, ...]
    continues: bool


async def completion_job(body: CompletionRequest, deployment: Deployment) -> Job:
    """Check and tokenise a completion. Raises ApiError."""
    _check_fields(body, deployment)
    texts, ids = _prompts(body)
    n = body.n or 1
    _check_room(len(texts or ids), n, deployment, "prompt")
    for row in ids:
        _max_tokens(len(row), body.max_tokens, COMPLETION_TOKENS, deployment, "prompt")
        check_ids(row, deployment, "prompt")
    if texts:
        tokenizer = deployment.tokenizer
        if tokenizer is None:
            raise invalid(f"The model '{deployment.name}' has no tokenizer; send 'prompt' as token ids.", "prompt")
        for text in texts:
            _check_length(text, body.max_tokens, COMPLETION_TOKENS, deployment, "prompt")
        ids = await aside(lambda: [tokenizer.encode(text) for text in texts], sum(map(len, texts)))
    elif body.echo:
        texts = await aside(lambda: [deployment.text_of(row) for row in ids], sum(map(len, ids)))
    choices = _choices(body, deployment, ids, "prompt", body.max_tokens, COMPLETION_TOKENS)
    prefixes = tuple(text for text in texts for _ in range(n)) if body.echo else ("",) * len(choices)
    return Job(choices=choices, n=n, stops=_stops(body), prefixes=prefixes, continues=True)


def _prompts(body: CompletionRequest) -> tuple[list[str], list[list[int]]]:
    """The prompts, which are all texts or all token ids."""
    prompt = body.prompt
    if isinstance(prompt, str):
        prompts: list[str] | list[list[int]] = [prompt]
    elif prompt and isinstance(prompt[0], int):
        prompts = [prompt]
    else:
        prompts = cast(list[str] | list[list[int]], prompt)
    if not prompts or not all(prompts):
        raise invalid("'prompt' must not be empty.", "prompt")
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    return texts, [prompt for prompt in prompts if not isinstance(prompt, str)]


async def chat_job(body: ChatRequest, deployment: Deployment) -> Job:
    """Check, render and tokenise a chat. Raises ApiError."""
    _check_fields(body, deployment)
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise invalid("Set 'max_tokens' or 'max_completion_tokens', not both.", "max_completion_tokens")
    if body.top_logprobs and not body.logprobs:
        raise invalid("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")

    _check_room(1, body.n or 1, deployment, "n")
    asked = body.max_completion_tokens or body.max_tokens
    messages = [plain(message) for message in body.messages]

    def tokenise() -> list[int]:
        text = deployment.chat.render(messages)
        # A template that renders has come with a tokenizer, and has written the special tokens out.
        assert deployment.tokenizer is not None
        _check_length(text, asked, deployment.max_context, deployment, "messages")
        return deployment.tokenizer.encode(text, add_special=False)

    try:
        prompt = await aside(tokenise, characters_of(messages))
    except ChatError as error:
        raise invalid(str(error), "messages") from error
    choices = _choices(body, deployment, [prompt], "messages", asked, deployment.max_context)
    return Job(choices=choices, n=len(choices), stops=_stops(body), prefixes=("",) * len(choices), continues=False)


def plain(message: Message) -> dict[str, str]:
    """The message as templates take it."""
    content = message.content
    plain = {
        "role": "system" if message.role == "developer" else message.role,
        "content": content if isinstance(content, str) else "".join(part.text for part in content),
    }
    return plain if message.name is None else plain | {"name": message.name}


def characters_of(messages: Iterable[dict[str, str]]) -> int:
    """What a template may write of the messages; one without content is something, too."""
    return sum(len(text) for message in messages for text in message.values())


def _check_fields(body: SamplingFields, deployment: Deployment) -> None:
    check_model(body.model, deployment.name)
    if body.stream_options is not None and not body.stream:
        raise invalid("'stream_options' needs 'stream' to be true.", "stream_options")
    check_ids(body.stop_token_ids or (), deployment, "stop_token_ids")
    check_ids(_biases(body).keys(), deployment, "logit_bias")


def _biases(body: SamplingFields) -> dict[int, float]:
    return {int(token): bias for token, bias in (body.logit_bias or {}).items()}


def check_ids(ids: Iterable[int], deployment: Deployment, param: str) -> None:
    """Raise ApiError for an id outside the vocabulary."""
    for token in ids:
        if not 0 <= token < deployment.vocab:
            raise invalid(f"Token id {token} in '{param}' is outside the vocabulary of {deployment.vocab}.", param)


def _check_room(prompts: int, n: int, deployment: Deployment, param: str) -> None:
    most = deployment.plan.schedule.max_requests
    if prompts * n > most:
        raise invalid(f"{prompts} prompts with n={n} are more than the {most} requests of this server.", param)


def _check_length(text: str, asked: int | None, default: int, deployment: Deployment, param: str) -> None:
    """Refuse a text that is too long however few tokens it may have."""
    assert deployment.tokenizer is not None
    if most := deployment.tokenizer.most_bytes:
        _max_tokens(-(-len(text.encode()) // most), asked, default, deployment, param, at_least=True)


def _choices(
    body: SamplingFields,
    deployment: Deployment,
    prompts: Sequence[Sequence[int]],
    param: str,
    asked: int | None,
    default: int,
) -> tuple[tuple[Sequence[int], SamplingParams], ...]:
    shared = _sampling(body, deployment)
    choices = []
    for prompt in prompts:
        params = replace(shared, max_tokens=_max_tokens(len(prompt), asked, default, deployment, param))
        if params.min_tokens > params.max_tokens:
            raise invalid(
                f"'min_tokens' {params.min_tokens} is above the {params.max_tokens} tokens to generate.", "min_tokens"
            )
        choices += [(prompt, replace(params, seed=_derived(shared.seed, index))) for index in range(body.n or 1)]
    return tuple(choices)


def _stops(body: SamplingFields) -> tuple[str, ...]:
    stop = body.stop or ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _max_tokens(
    prompt: int, asked: int | None, default: int, deployment: Deployment, param: str, *, at_least: bool = False
) -> int:
    """Tokens to generate after `prompt` tokens (or `at_least` so many). Raises ApiError where they do not fit."""
    limit = deployment.max_context
    completion = max(1, min(default, limit - prompt)) if asked is None else asked
    if prompt + completion > limit:
        raise context_exceeded(limit, prompt, completion, param, at_least=at_least)
    return completion


def _sampling(body: SamplingFields, deployment: Deployment) -> SamplingParams:
    model = deployment.generation
    ends = dict.fromkeys((*(() if body.ignore_eos else model.eos_tokens), *(body.stop_token_ids or ())))
    if len(ends) > MAX_STOP_TOKENS:
        raise invalid(
            f"'stop_token_ids' and the model's own end tokens are {len(ends)} together, at most {MAX_STOP_TOKENS} "
            "are possible.",
            "stop_token_ids",
        )
    if body.sparse_attention and not deployment.plan.offload.sparse_blocks:
        raise invalid("This deployment attends to all KV: it has no sparse selection.", "sparse_attention")
    return SamplingParams(
        max_tokens=0,
        min_tokens=body.min_tokens or 0,
        temperature=model.temperature if body.temperature is None else body.temperature,
        top_p=model.top_p if body.top_p is None else body.top_p,
        top_k=max(0, model.top_k if body.top_k is None else body.top_k),
        min_p=model.min_p if body.min_p is None else body.min_p,
        repetition_penalty=model.repetition_penalty if body.repetition_penalty is None else body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=tuple(_biases(body).items()),
        logprobs=body.wanted_logprobs,
        prompt_logprobs=body.wanted_prompt_logprobs,
        seed=secrets.randbelow(SEEDS) if body.seed is None else body.seed % SEEDS,
        stop_tokens=tuple(ends),
        priority=MOST_PRIORITY - (body.priority or 0),
        sparse=body.sparse_attention or False,
    )


def _derived(seed: int, index: int) -> int:
    """The seed of a prompt's choice `index`: the request's own for the first, far apart for the others."""
    return (seed + index * 0x9E3779B97F4A7C15) % SEEDS
