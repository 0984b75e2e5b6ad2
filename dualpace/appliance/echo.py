"""The text that a choice begins with, and what is known of its tokens."""

from collections.abc import Sequence

from dualpace.appliance.deployment import Deployment
from dualpace.appliance.logprobs import TokenLogprob, logprob_of
from dualpace.engine.ring import TokenEvent


class Echo:
    """Gives out the text of a prompt. If its tokens are scored, a piece with each of them."""

    def __init__(self, deployment: Deployment, prompt: Sequence[int], text: str, *, scored: bool) -> None:
        """`text` is the prompt's, or empty if it is not echoed."""
        self._deployment = deployment
        self._left = text
        # Where tokens begin in the text, by what they decode to: a tokenizer may have normalised what it was given.
        self._stream = deployment.text_stream(continues=False)
        self._decoded = 0
        self._logprobs: list[TokenLogprob] = []
        if scored:
            self._add(prompt[0], None, ())

    def take(self, event: TokenEvent) -> str:
        """The text up to the end of the token that `event` is of."""
        return self._cut(self._add(event.token, event.logprob, event.top))

    def rest(self) -> str:
        """The text that is left."""
        return self._cut(len(self._left)) if self._left else ""

    def logprobs(self) -> list[TokenLogprob]:
        """Of the tokens since the last call. The first token of all has none, but an entry."""
        logprobs, self._logprobs = self._logprobs, []
        return logprobs

    def _add(self, token: int, logprob: float | None, top: tuple[tuple[int, float], ...]) -> int:
        """The characters that the token completes."""
        self._logprobs.append(logprob_of(self._deployment, token, logprob, top, self._decoded))
        characters = len(self._stream.push(token))
        self._decoded += characters
        return characters

    def _cut(self, characters: int) -> str:
        piece, self._left = self._left[:characters], self._left[characters:]
        return piece
