"""From tokens to text: the choices of one HTTP request as they grow."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, NamedTuple

from dualpace.appliance.deployment import Deployment
from dualpace.appliance.dispatch import Dispatcher, OpenSpout, Sink
from dualpace.appliance.echo import Echo
from dualpace.appliance.errors import ApiError, client_gone, failed, unavailable
from dualpace.appliance.logprobs import TokenLogprob, logprob_of
from dualpace.appliance.responses import CompletionTokensDetails, FinishReason, PromptTokensDetails, Usage
from dualpace.appliance.stops import StopMatcher
from dualpace.appliance.tally import FINISHED
from dualpace.appliance.validate import Job
from dualpace.engine.ring import Finish, TokenEvent


class Delta(NamedTuple):
    """New text of a choice, by index; with its last text comes the reason why it finished.

    `logprobs` is of the tokens that begin in the text; None if nobody asked.
    """

    choice: int
    text: str
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprob, ...] | None = None

    @property
    def ended_by(self) -> FinishReason:
        """The reason of a choice that has finished."""
        assert self.finish_reason is not None
        return self.finish_reason


class Choice:
    """One choice: detokenises, stops at stop strings, counts."""

    def __init__(self, deployment: Deployment, job: Job, index: int) -> None:
        (prompt, params), prefix = job.choices[index], job.prefixes[index]
        self._deployment = deployment
        self._scored = params.prompt_logprobs is not None
        self._echo = Echo(deployment, prompt, prefix, scored=self._scored)
        self._text = deployment.text_stream(continues=job.continues)
        self._stops = StopMatcher(job.stops)
        self._min_tokens = params.min_tokens
        self._wants_logprobs = params.logprobs is not None
        # Of tokens whose text is not certain yet, with the characters that are decoded and that are passed on.
        self._logprobs: list[TokenLogprob] = []
        self._decoded = self._passed = len(prefix)
        self.finish_reason: FinishReason | None = None
        self.tokens = 0
        self.cached_tokens = self.sparse_tokens = 0

    @property
    def is_plain(self) -> bool:
        """Whether a token that is neither the first nor the last may do no more than add its text."""
        return not (self._stops or self._wants_logprobs or self._scored)

    def piece(self, token: int) -> str | None:
        """The text of such a token of a choice that is plain; None if its event has to be taken."""
        text = self._text.piece(token)
        if text is not None:
            self.tokens += 1
        return text

    def skip(self, tokens: int) -> None:
        """Count tokens of a choice that is plain, whose text went past it."""
        self.tokens += tokens

    def take(self, event: TokenEvent) -> str:
        """The text that is certain after `event`, which is none of `failure_of`."""
        self.cached_tokens, self.sparse_tokens = event.cached_tokens, event.sparse_tokens
        if event.of_prompt:
            return self._echo.take(event)
        text, finish = "", event.finish
        if event.token >= 0:
            self.tokens += 1
            # The token that ends a text is not part of it. Who asks about the prompt's tokens knows how many there are,
            # and finds by counting from either end which is which.
            in_text = not finish or finish is not Finish.STOP
            if self._wants_logprobs and (in_text or self._scored):
                self._logprobs.append(
                    logprob_of(self._deployment, event.token, event.logprob, event.top, self._decoded)
                )
            if in_text:
                text = self._text.push(event.token)
                self._decoded += len(text)
        if finish:
            text += self._text.flush()
        if self.tokens >= self._min_tokens:
            text = self._stops.push(text)
        if self._stops.stopped:
            self.finish_reason = "stop"
        elif finish:
            self.finish_reason = "length" if finish is Finish.LENGTH else "stop"
            text += self._stops.flush()
        self._passed += len(text)
        return self._echo.rest() + text

    def flush(self) -> str:
        """The text held back, where a failure ends the choice."""
        text = self._stops.push(self._text.flush()) + self._stops.flush()
        self._passed += len(text)
        return text

    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """Of the tokens that begin in the text that was returned since; None if nobody asked."""
        if not self._wants_logprobs:
            return None
        whole = self.finish_reason is not None and not self._stops.stopped
        certain = [entry for entry in self._logprobs if whole or entry.offset < self._passed]
        del self._logprobs[: len(certain)]
        return (*self._echo.logprobs(), *certain)


def failure_of(event: TokenEvent) -> ApiError | None:
    """Why the engine gave up on a choice, if `event` says that it did."""
    match event.finish:
        case Finish.ENGINE_GONE:
            return unavailable("the engine has stopped")
        case Finish.ERROR | Finish.ABORT:
            return failed("the engine gave it up")
        case _:
            return None


class Generation:
    """Runs a job: submits on entry, and on exit aborts what has not finished."""

    def __init__(self, dispatcher: Dispatcher, deployment: Deployment, job: Job, arrived: float) -> None:
        """`arrived` is when the request did, in seconds of `pace.clock`."""
        self._dispatcher = dispatcher
        self._job = job
        self._arrived = arrived
        self._unfinished = "error"  # why a choice has not finished: something failed, unless its client left
        self._failure: ApiError | None = None
        self.choices = [Choice(deployment, job, index) for index in range(len(job.choices))]
        self._running = len(self.choices)

    async def __aenter__(self) -> "Generation":
        self._inbox, self._tags = self._dispatcher.submit(self._job.choices, self._arrived)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._dispatcher.abort(self._tags)
        for choice in self.choices:
            self._dispatcher.tally.add(FINISHED, value=choice.finish_reason or self._unfinished)

    def leave(self) -> None:
        """End at once: the client is gone."""
        self._unfinished = "abort"
        self._inbox.fail(client_gone())

    def pour(self, sink: Callable[[int, Choice, OpenSpout], Sink]) -> None:
        """Have each plain choice's tokens taken by the sink that is made for it and its index."""
        for index, (tag, choice) in enumerate(zip(self._tags, self.choices, strict=True)):
            if choice.is_plain:
                self._dispatcher.pour(tag, sink(index, choice, partial(self._dispatcher.open_spout, tag)))

    def listen(self, listener: Callable[[], bool]) -> None:
        """Have `listener` called when tokens come; it may `take` them, and says whether more are to come."""
        self._inbox.listener = listener

    @property
    def is_over(self) -> bool:
        """Whether every choice has finished, or one has failed."""
        return not self._running or self._failure is not None

    async def deltas(self) -> AsyncIterator[list[Delta]]:
        """New text until every choice has finished; a reader that lags gets it in larger pieces.

        Raises ApiError where one fails, after all the text there is.
        """
        while not self.is_over:
            try:
                events = await self._inbox.get()
            except ApiError as error:
                events, self._failure = [], error
            yield self._deltas(events)
        if self._failure is not None:
            raise self._failure

    def take(self) -> list[Delta]:
        """New text, without waiting."""
        return self._deltas(self._inbox.take())

    def _deltas(self, events: list[tuple[int, TokenEvent]]) -> list[Delta]:
        texts: dict[int, str] = {}
        for index, event in events:
            choice = self.choices[index]
            if choice.finish_reason is not None:
                continue
            if event.finish and (failed_by := failure_of(event)):
                self._failure = self._failure or failed_by
                continue
            texts[index] = texts.get(index, "") + choice.take(event)
            if choice.finish_reason is not None:
                self._running -= 1
                self._dispatcher.finish(self._tags[index])
        if self._failure is not None:
            for index, choice in enumerate(self.choices):
                if choice.finish_reason is None:
                    texts[index] = texts.get(index, "") + choice.flush()
        return [
            Delta(index, text, self.choices[index].finish_reason, self.choices[index].logprobs())
            for index, text in texts.items()
            if text or self.choices[index].finish_reason
        ]

    def report(self, usage: Usage) -> dict[str, Any]:
        """What the log says of it, without any text."""
        return {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "finish_reasons": [choice.finish_reason or self._unfinished for choice in self.choices],
        }

    def usage(self) -> Usage:
        """Tokens so far. Choices of one prompt share it, so it counts once."""
        firsts = range(0, len(self.choices), self._job.n)
        prompt = sum(len(self._job.choices[first][0]) for first in firsts)
        completion = sum(choice.tokens for choice in self.choices)
        cached = sum(self.choices[first].cached_tokens for first in firsts)
        sparse = sum(choice.sparse_tokens for choice in self.choices)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
            completion_tokens_details=CompletionTokensDetails(sparse_tokens=sparse) if sparse else None,
        )
