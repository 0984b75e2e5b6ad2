"""Request bodies, put together from pieces that are encoded once: a prompt of 100,000 tokens takes microseconds."""

import json
from random import Random

from dualpace.bench.lengths import Request
from dualpace.bench.load import Load

PIECE = 64
PIECES = 1024
# Short words that the usual tokenizers know as one token each, with the space before.
WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "life", "child", "world", "school", "state",
    "family", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system", "program",
    "question", "work", "number", "night", "point", "home", "water", "room", "mother", "area", "money", "story",
    "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side",
    "kind", "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end", "law",
    "car", "city", "name", "team", "minute", "idea", "body",
)  # fmt: skip


class Bodies:
    """Makes the JSON bodies of a load's requests; the same seed and `run` give the same ones.

    Runs that are told apart have prompts of their own, of the same lengths: no server has kept them from another run.
    Prompts are ids from `load.ids` for the completions API, text for the chat API, whose tokens are about as many.
    """

    def __init__(self, load: Load, run: str = "") -> None:
        self._seed = f"{load.seed} {run}"
        self._dice = Random(f"{self._seed} prompts")
        self._load = load
        self._text = load.api == "chat"
        self._pieces = [self._piece(self._dice) for _ in range(PIECES)]
        self._blocks: dict[tuple[int, int], bytes] = {}
        fields = {"model": load.model, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        fields = {name: value for name, value in (fields | load.body).items() if value is not None}
        self._fields = json.dumps(fields).encode()[:-1]
        self._limit = json.dumps("max_tokens").encode()

    def body(self, request: Request) -> bytes:
        """The body that asks for `request`."""
        prompt = json.dumps(request.text).encode() if request.text is not None else self._made_up(request)
        name = b'"messages": [{"role": "user", "content": %b}]' if self._text else b'"prompt": %b'
        return b"%b, %b: %d, %b}" % (self._fields, self._limit, request.output, name % prompt)

    def _made_up(self, request: Request) -> bytes:
        parts = [self._block(key, tokens) for key, tokens in request.blocks]
        rest = request.prompt - sum(tokens for _, tokens in request.blocks)
        if rest > 0:
            # The first tokens are drawn one by one, so that no two prompts begin alike unless they are to.
            whole, odd = divmod(rest, PIECE)
            parts.append(self._tokens(self._dice, odd or PIECE))
            parts += self._dice.choices(self._pieces, k=whole if odd else whole - 1)
        return b'"%b"' % b"".join(parts) if self._text else b"[%b]" % b", ".join(parts)

    def _block(self, key: int, tokens: int) -> bytes:
        """The tokens of a block that several prompts have. Kept only where blocks are few."""
        found = self._blocks.get((key, tokens))
        if found is None:
            found = self._tokens(Random(f"{self._seed} block {key}"), tokens)
            if len(self._blocks) < PIECES:
                self._blocks[key, tokens] = found
        return found

    def _piece(self, dice: Random) -> bytes:
        return self._tokens(dice, PIECE)

    def _tokens(self, dice: Random, count: int) -> bytes:
        if self._text:
            return "".join(f"{word} " for word in dice.choices(WORDS, k=count)).encode()
        return ", ".join(map(str, dice.choices(range(*self._load.ids), k=count))).encode()
