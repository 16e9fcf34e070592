"""Goal: any bytes can be shown, within bounds, and what a user enters becomes the bytes that were meant."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau_cli.console.core.content import entered, hex_dump, indented_json, is_text, shown


@pytest.mark.parametrize(
    ("content", "best"),
    [
        (b'{"a": 1}', "json"),
        (b"[1, 2]", "json"),
        (b"plain", "text"),
        (b"two\nlines\t", "text"),
        ("Vltava \u0159eka".encode(), "text"),
        (b"12", "text"),
        (b'{"a": }', "text"),
        (b'{"a": NaN}', "text"),
        (b"[" * 100_000, "text"),
        (b"\x00\x00\x00\x00\x07abc", "hex"),
        (b"\xff\xfe", "hex"),
        (b"\x1b[31mred", "hex"),
        ("\u6771\u4eac\u3000\u5927\u962a".encode(), "text"),  # a blank of Japanese
        ("12\u00a0\u20ac".encode(), "text"),
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467".encode(), "text"),  # one family, joined
        ("\u202egnp.exe".encode(), "hex"),
        (b"", "text"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_the_best_view_is_found(content, best):
    assert shown(content)["best"] == best


@pytest.mark.parametrize("left_out", [0, 1])
def test_content_of_the_bound_is_whole(left_out):
    content = b'{"a": 1}'
    view = shown(content, bytes_max=len(content) - left_out)
    assert (view["cut"], view["best"]) == ((True, "text") if left_out else (False, "json"))


def test_null_is_not_empty():
    assert shown(None) is None
    assert shown(b"")["text"] == ""


@given(content=st.binary(max_size=300), bytes_max=st.integers(1, 100))
def test_any_bytes_are_shown_within_bounds(content, bytes_max):
    view = shown(content, bytes_max=bytes_max)
    assert view["bytes"] == len(content)
    assert view["cut"] is (len(content) > bytes_max)
    assert len(view["text"]) <= bytes_max
    digits = "".join(line[10:57] for line in view["hex"].splitlines())
    assert bytes.fromhex(digits) == content[:bytes_max]
    json.dumps(view)  # it can be sent


@given(text=st.text(max_size=60), cut=st.integers(1, 40))
def test_a_cut_inside_a_character_is_still_text(text, cut):
    content = text.encode()
    if is_text(content) and len(content) > cut:
        assert text.startswith(shown(content, bytes_max=cut)["text"])


def test_a_long_value_in_another_encoding_is_no_text():
    """Bytes that are no UTF-8 were left out, and the rest of a value that was cut off was shown as its text."""
    content = "caf\u00e9 ".encode("latin-1")
    assert shown(content)["best"] == "hex"
    view = shown(content * 10, bytes_max=len(content))
    assert (view["best"], view["text"]) == ("hex", "caf\ufffd ")


@given(
    document=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_indentation_is_that_of_the_standard_library(document):
    if isinstance(document, list | dict):
        assert indented_json(json.dumps(document).encode()) == json.dumps(document, indent=2)


def test_json_keeps_the_digits_of_numbers():
    text = '{"price": 1.10, "id": 12345678901234567890, "small": 1e-7}'
    indented = indented_json(text.encode())
    assert "1.10" in indented
    assert "12345678901234567890" in indented
    assert "1e-7" in indented


def test_a_dump_shows_position_bytes_and_characters():
    assert hex_dump(b"Moldau\x00") == "00000000  4d 6f 6c 64 61 75 00                             Moldau."


@pytest.mark.parametrize(
    ("text", "form", "content"),
    [
        (None, "text", None),
        ("", "text", b""),
        ("a", "text", b"a"),
        ('{"a":1}', "json", b'{"a":1}'),
        ("00 fF", "hex", b"\0\xff"),
    ],
)
def test_entered_text_becomes_bytes(text, form, content):
    assert entered(text, form) == content


@pytest.mark.parametrize(
    ("text", "form", "words"),
    [
        ("{", "json", "not JSON"),
        ("NaN", "json", "not JSON"),
        ("0g", "hex", "hexadecimal"),
        ("a", "xml", "unknown form"),
    ],
)
def test_a_wrong_form_is_named(text, form, words):
    with pytest.raises(ValueError, match=words):
        entered(text, form)


def test_deep_json_does_not_become_a_page_of_blanks():
    """Each element stands on a line of its own, behind the blanks of its level."""
    content = b"[" * 500 + b"1," * 50_000 + b"1" + b"]" * 500
    assert len(indented_json(content)) < 50 * len(content)
    assert json.loads(indented_json(content)) == json.loads(content)


def test_a_text_is_shown_as_text_wherever_it_is_cut():
    """A preview that ends within a character is no reason to show hexadecimal digits."""
    content = "a\u0159\u6771\U0001f468".encode() * 2
    for bytes_max in range(1, len(content) + 1):
        assert shown(content, bytes_max=bytes_max)["best"] == "text"
