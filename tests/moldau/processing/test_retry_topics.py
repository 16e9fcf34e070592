"""Goal: a failed record goes through its retry topics in order and ends as a dead letter with its failures in headers.

Method: the pure core, with a table and Hypothesis.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau import RecordDeserializationError, TopicPartition
from moldau.consumer import ConsumedRecord, InvalidTopicError
from moldau.processing import Failure, RetryTopics, failure_of

ORDERS = RetryTopics("orders", [5_000, 60_000], not_retried=(KeyError,))


def record(topic="orders", headers=(), offset=7):
    return ConsumedRecord(topic, 3, offset, 0, b"k", {"n": 1}, tuple(headers))


def consumed(out, offset):
    return ConsumedRecord(out.topic, 0, offset, 0, out.key, out.value, tuple(out.headers))


def test_a_record_goes_through_the_retries_to_the_dead_letters():
    first = ORDERS.failed(record(headers=[("trace", b"1")]), ValueError("full"), 1_000)
    assert (first.topic, first.key, first.value) == ("orders.retry.1", b"k", {"n": 1})
    assert first.headers[0] == ("trace", b"1")
    place = {"topic": "orders", "partition": 3, "offset": 7}
    assert failure_of(first.headers) == Failure(**place, attempts=1, due_ms=6_000, error="ValueError: full")
    second = ORDERS.failed(consumed(first, 50), OSError("gone"), 10_000)
    assert second.topic == "orders.retry.2"
    assert failure_of(second.headers) == Failure(**place, attempts=2, due_ms=70_000, error="OSError: gone")
    third = ORDERS.failed(consumed(second, 90), OSError("gone"), 80_000)
    assert third.topic == "orders.dead"
    assert failure_of(third.headers) == Failure(**place, attempts=3, due_ms=None, error="OSError: gone")
    assert [name for name, _ in third.headers].count("trace") == 1


def test_a_dead_letter_that_was_sent_back_is_retried():
    """Tools copy a record with its headers, which counted its former failures: the first new one was the last."""
    dead = record()
    for _ in range(3):
        dead = consumed(ORDERS.failed(dead, OSError("gone"), 0), 90)
    assert (dead.topic, failure_of(dead.headers).attempts) == ("orders.dead", 3)
    back = ORDERS.failed(record(headers=dead.headers, offset=99), OSError("gone again"), 1_000)
    assert back.topic == "orders.retry.1"
    assert failure_of(back.headers) == Failure(
        topic="orders", partition=3, offset=99, attempts=1, due_ms=6_000, error="OSError: gone again"
    )


def test_failures_in_another_topic_do_not_count():
    """A handler copies the headers of its input to its output, as for traces; another service reads the output."""
    retried = ORDERS.failed(record(), ValueError("full"), 0)
    out = RetryTopics("payments", [5_000]).failed(record("payments", retried.headers, 4), OSError("gone"), 1_000)
    assert out.topic == "payments.retry.1"
    assert failure_of(out.headers) == Failure(
        topic="payments", partition=3, offset=4, attempts=1, due_ms=6_000, error="OSError: gone"
    )


def test_an_error_that_no_header_can_hold_is_written_as_text():
    """Its text quotes a record whose JSON holds half of a surrogate pair: the processor ended at each such record."""
    out = ORDERS.failed(record(), ValueError("no price of \ud800"), 0)
    assert failure_of(out.headers).error == "ValueError: no price of \\ud800"


def test_errors_that_stay_are_not_retried():
    assert ORDERS.failed(record(), KeyError("x"), 0).topic == "orders.dead"


def test_poison_is_a_dead_letter_with_its_bytes():
    poison = RecordDeserializationError(
        "broken",
        field="value",
        topic_partition=TopicPartition("orders", 2),
        offset=11,
        timestamp=0,
        key=b"k",
        value=b"\xff",
        headers=(("h", None),),
    )
    out = ORDERS.failed(poison, poison, 0)
    assert (out.topic, out.key, out.value, out.headers[0]) == ("orders.dead", b"k", b"\xff", ("h", None))
    assert failure_of(out.headers).offset == 11


def test_a_retry_may_be_due_at_once():
    retries = RetryTopics("t", [0])
    failure = failure_of(retries.failed(record("t"), ValueError(), 1000).headers)
    assert (failure.due_ms, failure.attempts) == (1000, 1)


def test_the_topics_are_named():
    assert ORDERS.topics == ["orders", "orders.retry.1", "orders.retry.2"]
    assert RetryTopics("a", dead_letters="b").dead_letters == "b"
    assert RetryTopics("a", dead_letters="a.retry.1").dead_letters == "a.retry.1"


@pytest.mark.parametrize("dead", ["orders", "orders.retry.1", "orders.retry.2"])
def test_dead_letters_go_to_no_processed_topic(dead):
    """Each of them came back and failed again."""
    with pytest.raises(ValueError, match=f"RetryTopics: dead_letters is {dead}, whose records are processed"):
        RetryTopics("orders", [1, 2], dead_letters=dead)
    with pytest.raises(ValueError, match="RetryTopics: dead_letters is empty"):
        RetryTopics("orders", dead_letters="")


@pytest.mark.parametrize("wrong", [{"topic": ""}, {"delays_ms": [-1]}, {"delays_ms": 5}, {"delays_ms": [0.5]}])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises((TypeError, ValueError), match="RetryTopics: "):
        RetryTopics(**{"topic": "orders", **wrong})


@pytest.mark.parametrize(("topic", "dead"), [("o" * 242, None), ("two words", None), ("orders", "dead letters")])
def test_names_that_no_failed_record_can_be_sent_to_are_refused(topic, dead):
    """The processor would end at each failed record, also after a restart; 242 characters are legal in a name."""
    with pytest.raises(InvalidTopicError):
        RetryTopics(topic, delays_ms=[1], dead_letters=dead)
    assert RetryTopics("o" * 241, delays_ms=[1]).retries == ("o" * 241 + ".retry.1",)


@given(
    st.lists(st.tuples(st.sampled_from([f"__moldau.retry.{n}" for n in ("topic", "offset", "due.ms")]), st.binary()))
)
def test_damaged_headers_count_as_none(headers):
    assert failure_of(headers) is None
