from dataclasses import dataclass, field

import pytest


@dataclass
class Said:
    """What a build said."""

    steps: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def step(self, text: str) -> None:
        self.steps.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    @property
    def compiled(self) -> list[str]:
        return [step for step in self.steps if step.startswith("compile ")]


@pytest.fixture
def said() -> Said:
    return Said()
