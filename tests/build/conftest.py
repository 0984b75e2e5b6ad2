from dataclasses import dataclass, field

import pytest

from dualpace.build.errors import BuildError
from dualpace.build.toolchain import find_compiler


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


@pytest.fixture
def nvcc() -> None:
    """Skips where there is no CUDA toolkit."""
    try:
        find_compiler("nvcc")
    except BuildError as error:
        pytest.skip(str(error))
