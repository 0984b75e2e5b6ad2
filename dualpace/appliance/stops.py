"""Stop strings over a stream of text: finds them across any boundary and holds back no more than it must."""

from collections.abc import Sequence


class _Automaton:
    """Knuth-Morris-Pratt matcher of one stop string: `state` characters of it end the text seen so far."""

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._fallback = [0] * len(stop)
        self.state = 0
        for end in range(1, len(stop)):
            self._fallback[end] = self._next(self._fallback[end - 1], stop[end])

    def _next(self, state: int, char: str) -> int:
        while state and self._stop[state] != char:
            state = self._fallback[state - 1]
        return state + (self._stop[state] == char)

    def push(self, char: str) -> bool:
        """Whether `char` completes the stop string; nothing may be pushed after it has."""
        self.state = self._next(self.state, char)
        return self.state == len(self._stop)


class StopMatcher:
    """Passes text through up to the first stop string, which it swallows.

    The stop string that is completed first wins; of those completed by the same character, the longest. How the text
    is cut into pushes makes no difference to what comes out in all. Stop strings must not be empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._automata = [_Automaton(stop) for stop in stops]
        self._held = ""
        self.stopped = False

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self._automata)

    def push(self, text: str) -> str:
        """The text that is now certain to precede any stop string. Empty from the stop string on."""
        if self.stopped:
            return ""
        if not self._automata:
            return text
        text = self._held + text
        for end in range(len(self._held) + 1, len(text) + 1):
            completed = [a.state for a in self._automata if a.push(text[end - 1])]
            if completed:
                self.stopped = True
                self._held = ""
                return text[: end - max(completed)]
        certain = len(text) - max(a.state for a in self._automata)
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """The text held back, once nothing can follow it."""
        held, self._held = self._held, ""
        return held
