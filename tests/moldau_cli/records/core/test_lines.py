"""Goal: input becomes the records that its lines describe. Method: pure functions; pieces of any size."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau_cli.errors import UsageError
from moldau_cli.records.core import lines
from moldau_cli.records.core.lines import LineRules, Splitter, parse_document, parse_line


def split(pieces, delimiter=b"\n"):
    splitter = Splitter(delimiter)
    found = [line for piece in pieces for line in splitter.feed(piece)]
    return found + splitter.end()


@given(
    data=st.lists(st.sampled_from([b"a", b"bb", b"", b";", b"\r"]), max_size=8),
    cuts=st.lists(st.integers(0, 40), max_size=6),
    delimiter=st.sampled_from([b"\n", b";;", b"\0"]),
)
def test_pieces_of_any_size_give_the_same_lines(data, cuts, delimiter):
    whole = delimiter.join(data)
    edges = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    pieces = [whole[begin:end] for begin, end in itertools.pairwise(edges)]
    assert split(pieces, delimiter) == split([whole], delimiter)


def test_lines_end_with_or_without_a_carriage_return():
    assert split([b"one\r\ntwo\n\nthree"]) == [b"one", b"two", b"", b"three"]
    assert split([b"one\r;two"], b";") == [b"one\r", b"two"]


def test_input_without_the_delimiter_is_bounded(monkeypatch):
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 10)
    with pytest.raises(UsageError, match="more than 10 bytes"):
        Splitter(b";").feed(b"x" * 11)


@pytest.mark.parametrize(
    ("rules", "line", "key", "value"),
    [
        ({}, b"a:b", None, b"a:b"),
        ({"key_separator": b":"}, b"a:b:c", b"a", b"b:c"),
        ({"key_separator": b":"}, b"plain", None, b"plain"),
        ({"key": b"k"}, b"v", b"k", b"v"),
        ({"null": b"NULL", "key_separator": b":"}, b"NULL:NULL", None, None),
        ({"tombstones": True, "key_separator": b":"}, b"a:", b"a", None),
        ({}, b"", None, b""),
    ],
)
def test_keys_and_nulls(rules, line, key, value):
    record = parse_line(line, LineRules(**rules), "line")
    assert (record.key, record.value) == (key, value)


def test_headers_of_a_line_follow_those_of_all_records():
    rules = LineRules(headers=(("all", b"1"),), headers_delimiter=b"\t", key_separator=b"\t", null=b"NULL")
    record = parse_line(b"a:1,b:NULL\tk\tv", rules, "line")
    assert record.headers == (("all", b"1"), ("a", b"1"), ("b", None))
    assert (record.key, record.value) == (b"k", b"v")
    assert parse_line(b"NULL\tk\tv", rules, "line").headers == (("all", b"1"),)


@pytest.mark.parametrize(
    ("line", "words"),
    [(b"no headers", "no delimiter"), (b"a\tv", "has no b':'"), (b"\xff:1\tv", "not UTF-8")],
)
def test_wrong_headers_name_the_line(line, words):
    with pytest.raises(UsageError, match="stdin:7.*" + words):
        parse_line(line, LineRules(headers_delimiter=b"\t"), "stdin:7")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", "expected a JSON object"),
        (b"[1]", "not list"),
        (b'{"key": "k"}', "neither value nor value_base64"),
        (b'{"value": "v", "vlaue": 1}', "unknown key 'vlaue'"),
        (b'{"value": "v", "value_base64": ""}', "exclude each other"),
        (b'{"value_base64": "!"}', "no base64"),
        (b'{"value": "v", "partition": -1}', "partition must be"),
        (b'{"value": "v", "timestamp": true}', "timestamp must be"),
        (b'{"value": "v", "headers": "h"}', "headers must be"),
        (b'{"value": "v", "headers": [{"value": "x"}]}', "needs a name"),
        (b'{"value": "v", "headers": [{"name": "x", "value": 1}]}', "must be text or null"),
        (b'{"value": "v", "topic": "other"}', "topic 'other' is not 't'"),
    ],
)
def test_wrong_documents_name_the_line(line, words):
    with pytest.raises(UsageError, match="stdin:1: .*" + words):
        parse_document(line, LineRules(topic="t"), "stdin:1")


def test_documents_keep_values_for_serializers():
    record = parse_document(b'{"value": {"a": 1}, "headers": {"h": "x"}}', LineRules(key=b"k", partition=2), "line")
    assert (record.value, record.key, record.headers, record.partition) == ({"a": 1}, b"k", (("h", b"x"),), 2)


@pytest.mark.parametrize("line", [b'{"value": "v"}', b'{"value": "v", "key": null, "partition": 0, "timestamp": 0}'])
def test_options_count_before_the_document(line):
    """A document without a key gets that of the option, one with a null key has none."""
    document = parse_document(line, LineRules(partition=2, timestamp=5, key=b"k"), "line")
    assert (document.partition, document.timestamp, document.key) == (2, 5, None if b"key" in line else b"k")
    zero = parse_document(line, LineRules(partition=0, timestamp=0), "line")
    assert (zero.partition, zero.timestamp) == (0, 0)
    alone = parse_document(line, LineRules(), "line")
    assert (alone.partition, alone.timestamp) == ((0, 0) if b"key" in line else (None, None))


@pytest.mark.parametrize("headers", ['{"a": "1", "b": null}', '[{"name": "a", "value": "1"}, {"name": "b"}]'])
def test_headers_of_a_document_follow_those_of_all_records(headers):
    document = f'{{"value": "v", "headers": {headers}}}'.encode()
    found = parse_document(document, LineRules(headers=(("all", b"0"),)), "line").headers
    assert found == (("all", b"0"), ("a", b"1"), ("b", None))


def test_only_empty_values_are_tombstones():
    rules = LineRules(tombstones=True, null=b"NULL", key_separator=b":")
    found = [parse_line(line, rules, "line") for line in (b":", b"NULL:NULL", b"a:b", b"")]
    assert [(each.key, each.value) for each in found] == [(b"", None), (None, None), (b"a", b"b"), (None, None)]


PIECES = st.lists(st.sampled_from([b"a", b";", b";;", b"\r", b"\n"]), max_size=3).map(b"".join)


@given(pieces=st.lists(PIECES, max_size=6))
@pytest.mark.parametrize("delimiter", [b"\n", b";", b";;", b";;a"])
def test_a_splitter_is_empty_at_the_end(pieces, delimiter):
    """The rest of a source is its last line, and no part of the next source's first one."""
    splitter = Splitter(delimiter)
    found = [line for piece in pieces for line in splitter.feed(piece)] + splitter.end()
    assert splitter.end() == []
    whole = b"".join(pieces).split(delimiter)
    expected = whole if whole[-1] else whole[:-1]
    assert found == [line.removesuffix(b"\r") if delimiter == b"\n" else line for line in expected]
