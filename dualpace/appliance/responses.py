"""The API's responses."""

from typing import Literal

from pydantic import BaseModel, Field

FinishReason = Literal["stop", "length"]


class PromptTokensDetails(BaseModel):
    """How the prompt's tokens were come by."""

    cached_tokens: int = Field(description="Prompt tokens whose KV was reused.")


class Usage(BaseModel):
    """Token counts. A prompt counts once, whatever `n` is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionLogprobs(BaseModel):
    """One entry a token of the text. Bytes that are no whole characters are escaped, after `bytes:`."""

    tokens: list[str]
    token_logprobs: list[float | None] = Field(description="Null for the first token of an echoed prompt.")
    top_logprobs: list[dict[str, float] | None] = Field(
        description="The most probable tokens and the one that is there; null for the first token of an echoed prompt."
    )
    text_offset: list[int] = Field(description="Characters of the text before the token.")


class CompletionChoice(BaseModel):
    """One text, or a piece of it in a stream."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None


class Completion(BaseModel):
    """Response of /v1/completions; chunks of its stream are alike."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class AssistantMessage(BaseModel):
    """The model's turn."""

    role: Literal["assistant"]
    content: str
    refusal: None = None


class RankedToken(BaseModel):
    """A token and its log probability."""

    token: str
    bytes: list[int] | None = Field(description="What it adds to the text; null for a special token.")
    logprob: float


class ChatToken(RankedToken):
    """A generated token."""

    top_logprobs: list[RankedToken]


class ChatLogprobs(BaseModel):
    """One entry a token of the turn, or of a piece of it."""

    content: list[ChatToken]
    refusal: None


class ChatChoice(BaseModel):
    """One turn of the model."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason


class ChatCompletion(BaseModel):
    """Response of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(BaseModel):
    """A piece of the model's turn."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    """A piece of one turn."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None


class ChatChunk(BaseModel):
    """One event of a streamed chat completion, as `reply` writes it."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class ModelCard(BaseModel):
    """The served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "dualpace"
    max_model_len: int = Field(description="Longest prompt and completion together, in tokens.")


class ModelList(BaseModel):
    """Response of /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokenized(BaseModel):
    """Response of /tokenize."""

    count: int
    max_model_len: int = Field(description="Longest prompt and completion together, in tokens.")
    tokens: list[int]
    token_strs: list[str] | None = Field(None, description="The vocabulary's entries, if they were asked for.")


class Detokenized(BaseModel):
    """Response of /detokenize."""

    prompt: str


class Version(BaseModel):
    """Response of /version."""

    version: str
    system_fingerprint: str = Field(description="Of the bundle, as completions have it.")


class Health(BaseModel):
    """Response of the routes of /health."""

    status: Literal["ok", "unavailable"]
    reason: str | None = Field(None, description="Why nothing can be generated now.")


class Error(BaseModel):
    """What went wrong, for people (`message`) and programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Body of every answer that is not a success, and of an error event in a stream."""

    error: Error
