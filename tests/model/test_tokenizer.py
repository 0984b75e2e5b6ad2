"""Token ids to text and back, streamed and whole."""

import json
import subprocess
import sys
import threading
import time

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.model.tokenizer import Detokenizer, Tokenizer, TokenizerError
from dualpace.plan.manifest import TOKENIZER, Generation

from .conftest import byte_fallback_tokenizer, byte_level_tokenizer, write_bundle

PROPERTY = settings(deadline=None, max_examples=200)
# A token id as a fraction, for vocabularies of different sizes, with the byte tokens at the front drawn often.
TOKENS = st.lists(st.one_of(st.floats(0, 1, exclude_max=True), st.integers(0, 299)), max_size=40)


@pytest.fixture(scope="session", params=["byte_level", "byte_fallback", pytest.param("gemma", marks=pytest.mark.model)])
def both(request):
    """Our tokenizer and the library's, of one bundle."""
    bundle = request.getfixturevalue(request.param)
    return Tokenizer(bundle), tokenizers.Tokenizer.from_file(str(bundle / TOKENIZER))


def ids_of(draw, vocab):
    return [min(x, vocab - 1) if isinstance(x, int) else int(x * vocab) for x in draw]


def stream(tokenizer, ids, continues):
    detokenizer = Detokenizer(tokenizer, continues=continues)
    return [detokenizer.push(token) for token in ids], detokenizer.flush()


@given(draw=TOKENS, continues=st.booleans())
@PROPERTY
def test_streamed_text_is_the_text_of_all_tokens(both, draw, continues):
    tokenizer = both[0]
    ids = ids_of(draw, tokenizer.id_bound)
    pieces, rest = stream(tokenizer, ids, continues)
    assert "".join(pieces) + rest == tokenizer.decode(ids, continues=continues)


@given(draw=TOKENS)
@PROPERTY
def test_at_most_three_bytes_of_an_unfinished_character_are_held_back(both, draw):
    tokenizer = both[0]
    ids = ids_of(draw, tokenizer.id_bound)
    pieces, rest = stream(tokenizer, ids, True)
    for count in range(len(ids) + 1):
        so_far = "".join(pieces[:count])
        text = tokenizer.decode(ids[:count])
        assert text.startswith(so_far)
        held = text[len(so_far) :]
        assert set(held) <= {"\ufffd"}
        assert len(held) <= 3
    assert rest == held


@given(draw=TOKENS)
@PROPERTY
def test_text_agrees_with_the_library_where_bytes_are_utf8(both, draw):
    tokenizer, reference = both
    ids = ids_of(draw, tokenizer.id_bound)
    ours, theirs = tokenizer.decode(ids, continues=False), reference.decode(ids)
    # The library turns every byte of a run with a fault into U+FFFD, also those of whole characters before the fault.
    assert ours == theirs or ("\ufffd" in ours and "\ufffd" in theirs)


@given(text=st.text(st.characters(codec="utf-8"), max_size=40))
@PROPERTY
def test_text_survives_the_round_trip_over_any_split(both, text):
    tokenizer, reference = both
    ids = tokenizer.encode(text, add_special=False)
    assert ids == reference.encode(text, add_special_tokens=False).ids
    pieces, rest = stream(tokenizer, ids, False)
    assert "".join(pieces) + rest == reference.decode(ids)


def test_a_character_over_several_tokens_comes_out_once_whole(byte_fallback):
    tokenizer = Tokenizer(byte_fallback)
    ids = [3 + byte for byte in "é🦙".encode()]
    assert stream(tokenizer, ids, True) == (["", "é", "", "", "", "🦙"], "")
    assert stream(tokenizer, ids[:-1], True)[1] == "\ufffd"


def test_a_space_before_the_first_word_is_kept_only_after_other_text(byte_fallback):
    tokenizer = Tokenizer(byte_fallback)
    ids = tokenizer.encode("the cat", add_special=False)
    assert tokenizer.decode(ids, continues=False) == "the cat"
    assert tokenizer.decode(ids, continues=True) == " the cat"


def test_a_prompt_begins_with_one_bos(byte_fallback, byte_level):
    wants, does_not = Tokenizer(byte_fallback), Tokenizer(byte_level)
    plain = wants.encode("the cat", add_special=False)
    assert wants.encode("the cat") == [1, *plain]
    assert wants.encode("<bos>the cat").count(1) == 1
    assert does_not.encode("the cat") == does_not.encode("the cat", add_special=False)


def test_a_long_text_is_encoded_while_other_threads_go_on(both):
    mine, _ = both
    text = "the quick brown fox " * 10_000
    encoding = threading.Event()

    def encode() -> None:
        encoding.set()
        mine.encode(text)
        encoding.clear()

    thread = threading.Thread(target=encode)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # nobody has to let go of the interpreter
    try:
        thread.start()
        assert encoding.wait(10)
        turns = 0
        while encoding.is_set():
            time.sleep(0.001)
            turns += 1
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert turns > 3


def test_special_tokens_have_a_name_but_add_no_text(byte_level):
    tokenizer = Tokenizer(byte_level)
    assert tokenizer.token_text(1) == "<eos>"
    assert tokenizer.token_bytes(1) == b""
    assert tokenizer.token_text(10**6) is None
    assert tokenizer.token_bytes(10**6) == b""


def test_ids_with_holes_are_bounded_by_the_largest_and_not_by_their_count(tmp_path):
    description = json.loads(byte_level_tokenizer().to_str())
    eos = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    description["added_tokens"].append(eos | {"id": 500, "content": "<end>"})
    description["model"]["vocab"]["<end>"] = 500
    tokenizer = Tokenizer(write_bundle(tmp_path, tokenizers.Tokenizer.from_str(json.dumps(description)), Generation()))
    assert tokenizer.token_text(500) == "<end>"
    assert tokenizer.id_bound == 501


def test_a_length_limit_saved_with_the_tokenizer_cuts_nothing(tmp_path):
    limited = byte_level_tokenizer()
    limited.enable_truncation(4)
    limited.enable_padding(length=64)
    tokenizer = Tokenizer(write_bundle(tmp_path, limited, Generation()))
    assert tokenizer.encode("cat " * 30) == byte_level_tokenizer().encode("cat " * 30).ids


def test_a_bundle_without_a_tokenizer_says_so(tmp_path):
    with pytest.raises(TokenizerError, match="takes token ids only"):
        Tokenizer(tmp_path)


def test_a_decoder_that_cannot_stream_is_refused_by_name(tmp_path):
    description = json.loads(byte_fallback_tokenizer().to_str())
    description["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    odd = tokenizers.Tokenizer.from_str(json.dumps(description))
    with pytest.raises(TokenizerError, match=r"decodes by.*WordPiece"):
        Tokenizer(write_bundle(tmp_path, odd, Generation()))


def test_the_frontends_modules_need_neither_torch_nor_numpy_nor_transformers():
    code = (
        "import sys, dualpace.model.chat, dualpace.model.tokenizer\n"
        "print({'torch', 'numpy', 'transformers', 'gguf'} & set(sys.modules))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == "set()\n"
