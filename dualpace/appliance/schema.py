"""The API's requests, as far as they are served. Null for an optional field means omitted.

Fields of the OpenAI API that this server knows and does not serve are declared with `refused`: they accept only the
value that asks for nothing. Any other field is an error.

One thing that does not fit is enough to refuse a body, and each that is found takes hundreds of times its own bytes: no
list is searched for more.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from dualpace.plan.structs import MAX_BIAS, MAX_STOP_TOKENS, MAX_TOP_LOGPROBS

MAX_CHOICES = 8
MAX_STOPS = 4
UNSUPPORTED = "x-unsupported"
# As vLLM has it, the lowest is served first; rings have it the other way round, from 0 on.
LEAST_PRIORITY, MOST_PRIORITY = -128, 127


def _encodable(text: str) -> str:
    """Refuses half of a surrogate pair, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError(
            "surrogate", "the text has a lone surrogate at character {at}", {"at": error.start}
        ) from error
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Stop = Annotated[Text, Field(min_length=1, max_length=1024)]
Tokens = Annotated[list[int], Field(fail_fast=True)]


class Body(BaseModel):
    """Part of a request: strict about types, and about fields that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def refused(what: str) -> Any:
    """A known field that is not served, for this server has no `what`."""
    return Field(None, description=f"Not supported: no {what}. Leave it out.", json_schema_extra={UNSUPPORTED: what})


Nothing = Annotated[list[Any], Field(max_length=0)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,9})$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
TopLogprobs = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]


class StreamOptions(Body):
    """How a stream is sent."""

    include_usage: bool | None = Field(None, description="Send the usage in a last chunk without choices.")
    include_obfuscation: Literal[False] | None = refused("padding of chunks")


class SamplingFields(Body):
    """What both APIs share: the model, and how its tokens are drawn and returned."""

    model: Text = Field(description="The served model's name, see /v1/models.")
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(None, description="Most tokens to generate.")
    min_tokens: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Tokens generated before any stop condition counts; 0 by default."
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        None, description="Sampling temperature; 0 is greedy. The model's own by default."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Probability mass sampled from. The model's own by default."
    )
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = Field(
        None, description="Tokens sampled from; 0 or -1 for all. The model's own by default."
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="Least probability, relative to the best token's. The model's own by default."
    )
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = Field(
        None,
        description="Divides the logits of tokens of prompt and completion, multiplies those below 0. "
        "The model's own by default.",
    )
    presence_penalty: Penalty | None = Field(
        None, description="Subtracted from the logits of tokens generated before; 0 by default."
    )
    frequency_penalty: Penalty | None = Field(
        None, description="Subtracted from a token's logit for each time that it was generated; 0 by default."
    )
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=MAX_BIAS)] | None = Field(
        None,
        description=f"An object of up to {MAX_BIAS} token ids, each with what is added to its logit, from -100 to 100.",
    )
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = Field(
        None,
        description="The same seed and request give the same text, except where the last bits of a logit decide: they "
        "depend on how the prompt was cut into chunks, beside what other requests. Drawn at random by default.",
    )
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = Field(
        None, description=f"A string, or a list of up to {MAX_STOPS}, of 1 to 1,024 characters, that ends the text."
    )
    stop_token_ids: Annotated[Tokens, Field(max_length=MAX_STOP_TOKENS)] | None = Field(
        None, description=f"Token ids that end the text; with the model's own at most {MAX_STOP_TOKENS}."
    )
    ignore_eos: bool | None = Field(None, description="Generate past the model's end-of-sequence tokens.")
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = Field(
        None, description="Choices for each prompt; 1 by default."
    )
    stream: bool | None = Field(None, description="Send server-sent events as tokens come.")
    stream_options: StreamOptions | None = Field(None, description="Needs `stream`.")
    priority: Annotated[int, Field(ge=LEAST_PRIORITY, le=MOST_PRIORITY)] | None = Field(
        None,
        description=f"Of the requests that wait the lowest is served first, from {LEAST_PRIORITY} to {MOST_PRIORITY}; "
        "0 by default. A level is worth a head start of 16 requests, so none waits for ever.",
    )
    sparse_attention: bool | None = Field(
        None,
        description="Whether tokens may attend to chosen blocks of the KV only, if most of it is in host memory: "
        "faster, and lossy. For deployments with a sparse `offload.selection`; false by default.",
    )
    user: Text | None = Field(None, description="The client's name for its user, which the log has.")

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wanted_logprobs(self) -> int | None:
        """How many of the most probable tokens are wanted with each token's log probability; None: neither."""
        raise NotImplementedError

    @property
    def wanted_prompt_logprobs(self) -> int | None:
        """Likewise for the tokens of the prompt."""
        return None


def _some(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1}


# Prompts must not be empty. They are not refused by their type, which would not say that this is why.
_TEXT = {"type": "string", "minLength": 1}
_ID = {"type": "integer", "minimum": 0}


class CompletionRequest(SamplingFields):
    """Body of POST /v1/completions."""

    prompt: (
        Annotated[Text, WithJsonSchema(_TEXT)]
        | Annotated[list[Text], Field(fail_fast=True), WithJsonSchema(_some(_TEXT))]
        | Annotated[Tokens, WithJsonSchema(_some(_ID))]
        | Annotated[list[Tokens], Field(fail_fast=True), WithJsonSchema(_some(_some(_ID)))]
    ) = Field(description="A text, a list of texts, a list of token ids, or a list of lists of token ids.")
    max_tokens: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Most tokens to generate; 0 for none, where the prompt alone is of interest."
    )
    echo: bool | None = Field(None, description="Put the prompt before the text, and with `logprobs` its tokens' too.")
    logprobs: TopLogprobs | None = Field(
        None,
        description="Return each token's log probability and those of this many most probable tokens, "
        f"up to {MAX_TOP_LOGPROBS}.",
    )

    @property
    def wanted_logprobs(self) -> int | None:
        """As SamplingFields has it."""
        return self.logprobs

    @property
    def wanted_prompt_logprobs(self) -> int | None:
        """As SamplingFields has it."""
        return self.logprobs if self.echo else None

    best_of: Annotated[int, Field(ge=1, le=1)] | None = refused("choice of the best among hidden completions")
    suffix: Literal[""] | None = refused("insertion before a suffix")


class TextPart(Body):
    """Text, as part of a message."""

    type: Literal["text"]
    text: Text


class Message(Body):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"] = Field(
        description="Who speaks; developer is another name for system."
    )
    content: Text | Annotated[list[TextPart], Field(fail_fast=True)] = Field(
        description="A text, or a list of text parts, which are joined."
    )
    name: Text | None = Field(None, description="The speaker's name, for templates that use it.")

    annotations: None = refused("annotations")
    audio: None = refused("audio")
    function_call: None = refused("function calls")
    refusal: None = refused("refusals")
    tool_calls: Nothing | None = refused("tool calls")


class ResponseFormat(Body):
    """The only response format that is served."""

    type: Literal["text"]


class ChatRequest(SamplingFields):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] = Field(description="The chat so far.")
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Most tokens to generate; the newer name of max_tokens."
    )

    logprobs: bool | None = Field(None, description="Return each generated token's log probability.")
    top_logprobs: TopLogprobs | None = Field(
        None, description=f"And those of this many most probable tokens, up to {MAX_TOP_LOGPROBS}; needs `logprobs`."
    )

    @property
    def wanted_logprobs(self) -> int | None:
        """As SamplingFields has it."""
        return (self.top_logprobs or 0) if self.logprobs else None

    tools: Nothing | None = refused("tool calls")
    tool_choice: Literal["none", "auto"] | None = refused("tool calls")
    parallel_tool_calls: Literal[False] | None = refused("tool calls")
    functions: Nothing | None = refused("function calls")
    function_call: Literal["none", "auto"] | None = refused("function calls")
    response_format: ResponseFormat | None = refused("response format other than text")
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = refused("output other than text")
    audio: None = refused("audio")
    prediction: None = refused("predicted output")
    reasoning_effort: None = refused("reasoning effort")
    verbosity: None = refused("verbosity")
    web_search_options: None = refused("web search")
    moderation: None = refused("moderation")
    service_tier: Literal["auto", "default"] | None = refused("service tiers")
    store: Literal[False] | None = refused("storing of completions")
    metadata: None = refused("stored metadata")
    prompt_cache_key: None = refused("cache keys, for it finds prefixes by content")
    prompt_cache_options: None = refused("cache options")
    prompt_cache_retention: None = refused("cache retention")
    safety_identifier: None = refused("safety identifiers")


_NULL: JsonDict = {"type": "null"}
_PROMPT: JsonDict = {"properties": {"prompt": {"type": "string"}, "messages": _NULL}, "required": ["prompt"]}
_MESSAGES: JsonDict = {"properties": {"messages": {"type": "array"}, "prompt": _NULL}, "required": ["messages"]}


class TokenizeRequest(Body):
    """Body of POST /tokenize: a text or a chat."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [_PROMPT, _MESSAGES]})

    model: Text | None = Field(None, description="The served model's name, if any.")
    prompt: Text | None = Field(None, description="A text.")
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = Field(
        None, description="A chat, which is written as the model's template has it."
    )
    add_special_tokens: bool | None = Field(
        None, description="Put the model's BOS first; by default with a text, for a template has it already."
    )
    add_generation_prompt: bool | None = Field(
        None, description="End a chat where the model's turn begins; true by default."
    )
    return_token_strs: bool | None = Field(None, description="Return the vocabulary's entries too.")


class DetokenizeRequest(Body):
    """Body of POST /detokenize."""

    model: Text | None = Field(None, description="The served model's name, if any.")
    tokens: Tokens = Field(description="Token ids.")


_REQUESTS: tuple[type[Body], ...] = (
    DetokenizeRequest, TokenizeRequest, TextPart, Message, ResponseFormat, StreamOptions,
    CompletionRequest, ChatRequest,
)  # fmt: skip
# Every field that a request can have, by name: what an error says about one.
FIELDS: dict[str, FieldInfo] = {name: field for model in _REQUESTS for name, field in model.model_fields.items()}
