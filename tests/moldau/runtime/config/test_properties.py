"""Goal: a file of properties means what it means to Java, whatever letters its values have.

Method: a writer with the rules of ``java.util.Properties.store``, as text and with escapes, and single lines.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moldau.runtime.config import CONSUMER_CONFIG, ConfigError, parse_properties, parse_toml

ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"} | {char: f"\\{char}" for char in "=:#!"}
LETTERS = st.characters(exclude_categories=["Cs"])
TEXTS = st.text(st.one_of(st.sampled_from(" \t\n\r\f\\=:#!a\x1c\x85\u2028\u00a0\U0001f600"), LETTERS), max_size=8)


def stored(text: str, *, is_key: bool, escapes_letters: bool) -> str:
    """Writes a key or value as Java does; with ``escapes_letters`` all but ASCII as units of UTF-16."""
    out = []
    for at, char in enumerate(text):
        if char == " ":
            out.append("\\ " if is_key or at == 0 else " ")
        elif char in ESCAPES:
            out.append(ESCAPES[char])
        elif escapes_letters and not " " <= char <= "~":
            units = struct.unpack(f">{len(char.encode('utf-16-be')) // 2}H", char.encode("utf-16-be"))
            out += [f"\\u{unit:04X}" for unit in units]
        else:
            out.append(char)
    return "".join(out)


@pytest.mark.parametrize("escapes_letters", [False, True])
@example(pairs={"sasl.password": "a\u2028b\x85c\x0cd\x1ce", "x": "\U0001f600"})
@given(pairs=st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=4))
def test_what_java_writes_is_read_as_it_was(pairs: dict[str, str], escapes_letters: bool) -> None:
    """Blanks at the end of a value are dropped."""
    lines = [
        "=".join(stored(text, is_key=not at, escapes_letters=escapes_letters) for at, text in enumerate(pair))
        for pair in pairs.items()
    ]
    for line_end in ("\n", "\r\n", "\r"):
        text = line_end.join(["#Mon Nov 30 2026", *lines, ""])
        assert parse_properties(text) == {key: value.rstrip() for key, value in pairs.items()}


@pytest.mark.parametrize("escape", ["+041", "-041", " 041", "0_41", "00g1", "004", "", "\u0661\u0661\u0661\u0661"])
def test_an_escape_has_four_digits(escape: str) -> None:
    with pytest.raises(ConfigError, match=r"line 2: .* is no Unicode escape"):
        parse_properties(f"a=b\npassword=\\u{escape}")


def test_a_password_may_have_a_letter_of_two_escapes() -> None:
    """It was refused as text of another encoding."""
    text = r"sasl.password=\uD83D\uDE00"
    given = {"bootstrap.servers": "b:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    config = CONSUMER_CONFIG.parse({**given, "sasl.username": "ann", **parse_properties(text)})
    assert config.get_str("sasl.password") == "\U0001f600"
    assert parse_properties(r"a=\uDE00\uD83D") == {"a": "\ude00\ud83d"}, "half of a pair stays, and its key refuses it"


def test_a_byte_order_mark_belongs_to_no_name() -> None:
    """Editors of Windows begin a file with it: "node.id: unknown configuration key; did you mean node.id?"."""
    assert parse_properties("\ufeffnode.id=1\nrack=\ufeffa") == {"node.id": "1", "rack": "\ufeffa"}
    assert parse_toml("\ufeff[node]\nid = 1") == {"node.id": 1}


@pytest.mark.parametrize(
    ("text", "reason"), [("a = " + "[" * 3000 + "]" * 3000, "nested too deeply"), ("a = " + "9" * 5000, "4300 digits")]
)
def test_toml_beyond_the_bounds_of_python_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"not TOML: .*{reason}"):
        parse_toml(text)
