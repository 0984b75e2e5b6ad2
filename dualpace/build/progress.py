"""How a build says what it is doing."""

from typing import Protocol


class Progress(Protocol):
    """Receives what goes on. Called from any thread."""

    def step(self, text: str) -> None:
        """What is being done now; the next step replaces it."""

    def note(self, text: str) -> None:
        """Something that stays to be read, such as a finished unit or a compiler's warnings."""
