"""Goal: unmodified Kafka clients produce to and consume from a three-broker cluster, alone and in groups, with each
codec. Method: the same demands on confluent-kafka, kafka-python and aiokafka, over real sockets to real processes.
"""

from collections import Counter

import pytest

from support.interop.clients import CLIENTS, Member, committed_offsets, wait_until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # kafka-python leaves the socket pairs of its wake-ups to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PARTITIONS = 3


@pytest.fixture(params=list(CLIENTS))
def client(request, bootstrap):
    return CLIENTS[request.param](bootstrap)


def records_of(count, mark):
    return [
        (b"key-%d" % (number % 17), b"%s-%d-%s" % (mark, number, b"x" * (number % 50)), [("n", b"%d" % number)])
        for number in range(count)
    ]


def placed_of(found):
    return sorted((partition, offset, value) for partition, offset, _, value, _ in found)


def test_each_client_reads_records_of_each_client(client, bootstrap, topic):
    records = records_of(500, b"v")
    placed = client.produce(topic, records)
    assert Counter(value for _, _, value in placed) == Counter(value for _, value, _ in records)
    for name, reader in CLIENTS.items():
        found = reader(bootstrap).consume(topic, PARTITIONS, len(records))
        assert placed_of(found) == sorted(placed), name
        assert sorted((key, value, headers) for _, _, key, value, headers in found) == sorted(records), name


def test_offsets_are_dense_and_keys_stay_in_one_partition(client, topic):
    placed = client.produce(topic, records_of(300, b"d"))
    for partition in range(PARTITIONS):
        offsets = sorted(offset for where, offset, _ in placed if where == partition)
        assert offsets == list(range(len(offsets)))
    found = client.consume(topic, PARTITIONS, 300)
    homes = {(key, partition) for partition, _, key, _, _ in found}
    assert len(homes) == 17


@pytest.mark.parametrize("name", list(CLIENTS))
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_stored_as_sent_and_read_by_all(name, codec, bootstrap, topic):
    records = records_of(200, codec.encode())
    placed = CLIENTS[name](bootstrap).produce(topic, records, codec)
    for reader_name, reader in CLIENTS.items():
        assert placed_of(reader(bootstrap).consume(topic, PARTITIONS, 200)) == sorted(placed), reader_name


def ends_of(*batches):
    """The offset behind the last record of each partition."""
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    for partition, offset, _ in [placed for batch in batches for placed in batch]:
        offsets[partition] = max(offsets[partition], offset + 1)
    return list(offsets.values())


def test_a_group_resumes_from_its_committed_offsets(client, bootstrap, topic):
    """A group shares partitions and resumes where it committed."""
    group = f"group-of-{topic}"
    first = client.produce(topic, records_of(200, b"first"))
    one = Member(client, group, topic)
    wait_until(lambda: one.owned == [0, 1, 2], "one member owns all partitions")
    two = Member(client, group, topic)
    wait_until(
        lambda: one.owned and two.owned and sorted(one.owned + two.owned) == [0, 1, 2],
        "two members share the partitions",
    )
    second = client.produce(topic, records_of(200, b"second"))
    wait_until(lambda: set(one.found + two.found) >= set(first + second), "both batches are read")
    ends = ends_of(first, second)
    wait_until(lambda: committed_offsets(bootstrap, group, topic, PARTITIONS) == ends, "all is committed")
    one.leave()
    wait_until(lambda: two.owned == [0, 1, 2], "the member that stays takes over")
    two.leave()
    third = client.produce(topic, records_of(100, b"third"))
    later = Member(client, group, topic)
    wait_until(lambda: set(later.found) >= set(third), "the third batch is read")
    later.leave()
    assert sorted(later.found) == sorted(third)


def test_large_records_pass(client, topic):
    records = [(b"k%d" % number, bytes([number]) * 900_000, []) for number in range(3)]
    placed = client.produce(topic, records)
    assert placed_of(client.consume(topic, PARTITIONS, 3)) == sorted(placed)
