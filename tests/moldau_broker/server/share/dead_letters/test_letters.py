"""Goal: a topic gets dead letters only where its owner and the operator allow it; each says what it stands for.

Method: every reason for and against a queue, and record batches that are built and read back.
"""

from types import SimpleNamespace

import pytest

from moldau.records import Compression, decode_records, encode_batch, iterate_batches
from moldau.runtime.config.schemas import GROUP_CONFIG
from moldau_broker.server.share.core.values import Cause, DeadLetters
from moldau_broker.server.share.dead_letters.letters import LETTERS_MAX, Found, Source, build_letters, find_records
from moldau_broker.server.share.dead_letters.queue import ALLOWED, CREATES, PREFIX, dead_letter_queue, obstacle

SOURCE = Source("workers", "jobs", 3)
TOPIC = "errors.deadletterqueue.topic.name"


def queue_of(topic="dlq.jobs", *, prefix="dlq.", creates=False):
    broker = SimpleNamespace(get_str={PREFIX: prefix}.__getitem__, get_bool={CREATES: creates}.__getitem__)
    return dead_letter_queue(GROUP_CONFIG.parse({TOPIC: topic}), broker)


def image_of(**topics):
    configs = {name.replace("_", "."): value for name, value in topics.items()}
    return SimpleNamespace(topics_by_name=configs, topic_config=configs.__getitem__)


@pytest.mark.parametrize(
    ("queue", "source", "image", "why"),
    [
        (queue_of(), "jobs", image_of(dlq_jobs={ALLOWED: "true"}), None),
        (queue_of(), "jobs", image_of(dlq_jobs={ALLOWED: "TRUE"}), None),
        (queue_of("any", prefix=""), "jobs", image_of(any={ALLOWED: "true"}), None),
        (queue_of(creates=True), "jobs", image_of(), None),
        (queue_of(), "jobs", image_of(), "does not exist"),
        (queue_of(), "jobs", image_of(dlq_jobs={}), f"{ALLOWED} is not true"),
        (queue_of(creates=True), "jobs", image_of(dlq_jobs={ALLOWED: "false"}), f"{ALLOWED} is not true"),
        (queue_of("orders"), "jobs", image_of(orders={ALLOWED: "true"}), f"does not begin with {PREFIX} = 'dlq.'"),
        (queue_of(), "dlq.jobs", image_of(dlq_jobs={ALLOWED: "true"}), "the records come from this topic"),
    ],
)
def test_a_queue_has_an_obstacle_or_none(queue, source, image, why):
    """The owner of the topic allows it, the operator the name, and a topic is not its own queue."""
    found = obstacle(queue, source, image)
    assert (found is None) == (why is None)
    assert why is None or why in found


def test_internal_topics_are_no_queues():
    """Metadata of before the check of the key may name one."""
    broken = SimpleNamespace(topic="__consumer_offsets", prefix="", creates_topic=True)
    assert "internal" in obstacle(broken, "jobs", image_of())


def test_no_name_is_no_queue():
    assert queue_of("") is None


def letters_of(first, last, count=5, cause=Cause.DELIVERED_TOO_OFTEN):
    return DeadLetters(first, last, count, cause)


def built(found, letters, first, *, bytes_max=1 << 20):
    data, following = build_letters(SOURCE, letters, first, found, now_ms=77, bytes_max=bytes_max)
    ((position, header),) = iterate_batches(data)
    return decode_records(data, position, header), following, len(data)


def test_a_dead_letter_names_its_record():
    """The headers are those of Kafka 4.4, in its order; without a copy there is neither key nor value."""
    (first, second), following, _ = built(Found({}, 9), letters_of(7, 8, 2, Cause.REJECTED), 7)
    assert following == 9
    assert (first.key, first.value, first.timestamp, second.headers[2]) == (
        None,
        None,
        77,
        ("__dlq.errors.offset", b"8"),
    )
    assert first.headers == (
        ("__dlq.errors.topic", b"jobs"),
        ("__dlq.errors.partition", b"3"),
        ("__dlq.errors.offset", b"7"),
        ("__dlq.errors.group", b"workers"),
        ("__dlq.errors.delivery.count", b"2"),
        ("__dlq.errors.message", b"Offset rejected by client."),
    )


def test_a_copy_has_key_value_and_headers():
    """Headers that another queue has added are replaced: each of them stands once, and cannot be forged."""
    log = encode_batch([(1, b"k", b"v", [("own", b"1"), ("__dlq.errors.topic", b"forged")])], base_offset=7)
    (letter,), _, _ = built(find_records(log, 7, 8, 100), letters_of(7, 7), 7)
    assert (letter.key, letter.value, letter.headers[0]) == (b"k", b"v", ("own", b"1"))
    assert [value for name, value in letter.headers if name == "__dlq.errors.topic"] == [b"jobs"]
    assert letter.headers[-1] == ("__dlq.errors.message", b"Offset delivery count exceeded the threshold.")


def test_a_letter_of_a_compacted_queue_has_a_key():
    """Of its own, unless its copy has one: compaction keeps the last record of each key."""
    log = encode_batch([(1, b"k", b"v", []), (1, None, b"v", [])], base_offset=7)
    for found, keys in (
        (find_records(log, 7, 9, 100), [b"k", b"jobs-3-8"]),
        (Found({}, 9), [b"jobs-3-7", b"jobs-3-8"]),
    ):
        data, _ = build_letters(SOURCE, letters_of(7, 8), 7, found, now_ms=7, bytes_max=999, is_compacted=True)
        ((position, header),) = iterate_batches(data)
        assert [each.key for each in decode_records(data, position, header)] == keys


def test_a_batch_ends_at_its_bounds():
    """The rest follows in the next one: by bytes, and by number."""
    found = Found(dict(enumerate(_records(*[b"v" * 100] * 10))), 10)
    letters, following, size = built(found, letters_of(0, 9), 0, bytes_max=1_000)
    assert len(letters) == following < 10
    assert size <= 1_000
    letters, following, _ = built(Found({}, 2_000), letters_of(0, 1_999), 100)
    assert (len(letters), following) == (LETTERS_MAX, 100 + LETTERS_MAX)


def test_a_copy_that_does_not_fit_is_left_out():
    """The queue may take smaller batches than the topic of the record: the dead letter still says where that is."""
    found = Found(dict(enumerate(_records(b"v" * 5_000, b"small"))), 2)
    (large, small), following, size = built(found, letters_of(0, 1), 0, bytes_max=2_000)
    assert (large.value, small.value, following) == (None, b"small", 2)
    assert large.headers[2] == ("__dlq.errors.offset", b"0")
    assert size <= 2_000


def _records(*values, base_offset=0, **fields):
    data = encode_batch([(1, None, value, ()) for value in values], base_offset=base_offset, **fields)
    ((position, header),) = iterate_batches(data)
    return decode_records(data, position, header)


def test_records_are_found_in_whole_batches():
    """Compressed ones too; control batches and offsets outside the range are left out, gaps are no end."""
    log = b"".join(
        (
            encode_batch([(1, None, b"%d" % n, ()) for n in range(3)], compression=Compression.GZIP),
            encode_batch([(1, b"\0\0\0\0", b"", ())], base_offset=3, is_control=True, is_transactional=True),
            encode_batch([(1, None, b"%d" % n, ()) for n in range(6, 9)], base_offset=6),
        )
    )
    found = find_records(log, 1, 8, 1_000)
    assert {offset: record.value for offset, record in found.records.items()} == {1: b"1", 2: b"2", 6: b"6", 7: b"7"}
    assert found.end == 8
    assert find_records(log, 4, 6, 1_000) == Found({}, 6)
    assert find_records(b"", 4, 6, 1_000) == Found({}, 6)


def test_a_read_that_ends_early_says_where():
    """Records behind the read, or behind the bound of bytes, are there: another read finds them."""
    log = b"".join(encode_batch([(1, None, b"v" * 60, ())], base_offset=offset) for offset in range(4))
    assert find_records(log, 0, 100, 1_000).end == 4
    found = find_records(log, 0, 4, 100)
    assert (sorted(found.records), found.end) == ([0, 1], 2)


def test_a_damaged_batch_counts_as_gone():
    """A dead letter without a copy is better than none, and than one that is tried again for ever."""
    good = encode_batch([(1, None, b"v", ())])
    bad = bytearray(encode_batch([(1, None, b"w", ())], base_offset=1))
    bad[-4] = 99
    found = find_records(good + bytes(bad), 0, 3, 1_000)
    assert (sorted(found.records), found.end) == ([0], 3)
