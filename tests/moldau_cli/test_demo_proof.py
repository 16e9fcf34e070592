"""Goal: the proof reports exactly-once only for runs that were.

Method: small hand-made histories, good and bad; the input readers on small files.
"""

import pytest

from moldau_cli.demo.proof import tally
from moldau_cli.demo.records import flights_of, load_file, load_flights
from moldau_cli.errors import CommandError, UsageError
from moldau_jepsen.reports.demo import Tally

KEYS = [b"a", b"b", b"a", b"c"]
ALL = bytearray(b"\1\1\1\1")


def judged(seen, acknowledged=ALL):
    return tally("reader", KEYS, acknowledged, seen)


def good(seen):
    return Tally(reader="reader", seen=seen, lost=0, duplicated=0, unknown=0, disordered=0)


def test_each_record_once_and_in_key_order_is_exactly_once():
    """A reader that sees each record once and in the order of its key has read exactly once."""
    assert judged([(b"c", 3), (b"a", 0), (b"b", 1), (b"a", 2)]) == good(4)
    assert judged([(b"c", 3), (b"a", 0), (b"b", 1), (b"a", 2)]).exactly_once


def test_an_unacknowledged_record_may_be_missing_or_present():
    """A record that was not acknowledged may be missing or present."""
    acknowledged = bytearray(b"\1\0\1\1")
    assert judged([(b"a", 0), (b"a", 2), (b"c", 3)], acknowledged) == good(3)
    assert judged([(b"a", 0), (b"b", 1), (b"a", 2), (b"c", 3)], acknowledged) == good(4)


@pytest.mark.parametrize(
    ("seen", "fault"),
    [
        ([(b"a", 0), (b"b", 1), (b"a", 2)], "lost"),
        ([(b"a", 0), (b"b", 1), (b"a", 2), (b"c", 3), (b"b", 1)], "duplicated"),
        ([(b"a", 0), (b"b", 1), (b"a", 2), (b"c", 3), (b"c", 4)], "unknown"),
        ([(b"a", 0), (b"b", 1), (b"a", 2), (b"c", 3), (None, 3)], "unknown"),
        ([(b"a", 0), (b"b", 1), (b"a", 2), (b"c", 3), (b"b", 0)], "unknown"),
        ([(b"a", 2), (b"b", 1), (b"a", 0), (b"c", 3)], "disordered"),
    ],
)
def test_each_fault_is_counted_and_spoils_the_proof(seen, fault):
    found = judged(seen)
    counts = {name: getattr(found, name) for name in ("lost", "duplicated", "unknown", "disordered")}
    assert counts == dict.fromkeys(counts, 0) | {fault: 1}
    assert not found.exactly_once


def test_flights_have_key_value_and_time():
    lines = [b"carrier,flight,time_hour\r\n", b"UA,1545,2013-01-01T10:00:00Z\r\n", b"AA,1,2013-01-01T11:00:00Z\n"]
    found = flights_of(lines, "test")
    assert found.keys == [b"UA1545", b"AA1"]
    assert found.values[0] == b"UA,1545,2013-01-01T10:00:00Z"
    assert found.timestamps_ms == [1357034400000, 1357038000000]


def test_the_real_flights_are_all_there():
    assert load_flights().count == 336_776


def test_a_file_gives_one_record_a_line(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"one 1\ntwo,2\r\n\n" + b"x" * 100)
    found = load_file(path)
    assert found.keys == [b"one", b"two", b"", b"x" * 64]
    assert found.values == [b"one 1", b"two,2", b"", b"x" * 100]


def test_bad_input_is_refused_in_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*missing: No such file"):
        load_file(tmp_path / "missing")
    (tmp_path / "empty").touch()
    with pytest.raises(UsageError, match="is empty"):
        load_file(tmp_path / "empty")
    (tmp_path / "long").write_bytes(b"x" * 1_000_000)
    with pytest.raises(UsageError, match="line 1 has 1000000 bytes"):
        load_file(tmp_path / "long")
    with pytest.raises(CommandError, match="no columns carrier, flight and time_hour"):
        flights_of([b"a,b\n"], "test")
    with pytest.raises(CommandError, match="line 2 has 1 fields, not 3"):
        flights_of([b"carrier,flight,time_hour\n", b"UA\n"], "test")
