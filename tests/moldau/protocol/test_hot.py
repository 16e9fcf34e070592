"""Goal: the hand-written Produce and Fetch paths mean exactly what the compiled codecs mean.

Method: samples of every version are read by both and written by both; cut and mutated frames must fail in both or in
neither. All tests run with the short cuts of the extension and without them.
"""

import random
from uuid import UUID

import pytest

from moldau.protocol import hot
from moldau.protocol.codec import DecodeError, TooManyEntriesError, UnsupportedVersionError, decode, encode
from moldau.protocol.framing import decode_request_header, decode_response, encode_request, encode_response
from moldau.protocol.hot import pure, wire
from moldau.protocol.messages import fetch, produce
from support.protocol_samples import Sampler, samples, versions_of

FUNCTIONS = ("read_produce", "read_one_produce", "read_fetch", "read_fetch_answer", "write_produce", "write_fetch")


@pytest.fixture(autouse=True, params=["short cuts", "general"])
def short_cuts(request, monkeypatch) -> bool:
    """Serves with the extension, or without it."""
    if request.param == "general":
        module = pure
    else:
        module = pytest.importorskip("moldau.protocol.hot._wire", reason="the extension was not built")
    for name in FUNCTIONS:
        monkeypatch.setattr(wire, name, getattr(module, name))
    return request.param == "short cuts"


def raw_topic(version: int, name: str, topic_id: UUID) -> bytes:
    return topic_id.bytes if version >= 13 else name.encode()


def produce_view(request: produce.ProduceRequest, version: int) -> hot.ProduceRequestView:
    return hot.ProduceRequestView(
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        [
            (
                raw_topic(version, topic.name, topic.topic_id),
                [(part.index, memoryview(part.records or b"")) for part in topic.partition_data],
            )
            for topic in request.topic_data
        ],
    )


def fetch_view(request: fetch.FetchRequest, version: int) -> hot.FetchRequestView:
    state = request.replica_state
    return hot.FetchRequestView(
        state.replica_id if version >= 15 else request.replica_id,
        state.replica_epoch,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        request.session_id,
        request.session_epoch,
        [
            (
                raw_topic(version, topic.topic, topic.topic_id),
                [
                    hot.FetchPartitionView(
                        part.partition,
                        part.current_leader_epoch,
                        part.fetch_offset,
                        part.last_fetched_epoch,
                        part.log_start_offset,
                        part.partition_max_bytes,
                        part.replica_directory_id.bytes,
                        part.high_watermark,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        [
            (raw_topic(version, topic.topic, topic.topic_id), tuple(topic.partitions))
            for topic in request.forgotten_topics_data
        ],
        request.rack_id,
        request.cluster_id,
    )


@pytest.mark.parametrize("version", versions_of(produce.ProduceRequest))
def test_reading_produce_equals_the_compiled_codec(version: int) -> None:
    generator = random.Random(version)
    for extremes in (False, True):
        for sample in samples(produce.ProduceRequest, version, 25, extremes=extremes):
            assert isinstance(sample, produce.ProduceRequest)
            data = b"head" + encode(sample, version)
            assert hot.read_produce_request(memoryview(data), 4, version) == produce_view(sample, version)
            for broken in spoiled(generator, data[4:]):
                same_outcome(produce.ProduceRequest, version, broken)


@pytest.mark.parametrize("version", range(9, 14))
def test_requests_for_one_partition_are_read_at_once(version: int, short_cuts: bool) -> None:
    """A frame that the short cut reads means what the general reader says; it leaves all unusual ones."""
    generator = random.Random(version)
    taken = 0
    for number in range(200):
        records = bytearray(generator.randbytes(generator.choice((0, 60, 61, 200))))
        if len(records) > 22 and number % 3:
            records[22] &= 0xE8
        part = produce.PartitionProduceData(index=generator.randrange(1 << 31), records=bytes(records))
        topic = produce.TopicProduceData(name="t" * generator.randrange(1, 200), topic_id=UUID(int=5))
        topic.partition_data = [part] * generator.choice((1, 1, 1, 2, 0))
        request = produce.ProduceRequest(acks=generator.choice((-1, 0, 1)), timeout_ms=generator.randrange(1 << 31))
        request.topic_data = [topic] * generator.choice((1, 1, 1, 2))
        request.transactional_id = generator.choice((None, None, None, "x"))
        data = encode_request(request, version, number, generator.choice(("", "client", None)))[4:]
        at = decode_request_header(memoryview(data)).body_offset
        assert wire.read_one_produce(memoryview(data[: at - 1] + b"\x01\x00\x00" + data[at:]), version >= 13) is None
        for body in (data[at:], *spoiled(generator, data[at:])):
            frame = memoryview(data[:at] + body)
            found = wire.read_one_produce(frame, version >= 13)
            if found is None:
                continue
            taken += 1
            correlation_id, acks, timeout_ms, key, batch = found
            assert correlation_id == number
            read = hot.read_produce_request(frame, at, version)
            assert read == hot.ProduceRequestView(None, acks, timeout_ms, [(key[0], [(key[1], batch)])])
            assert len(batch) >= 61
            assert not batch[22] & 0x17
    assert (taken > 50) == short_cuts


@pytest.mark.parametrize("version", versions_of(fetch.FetchRequest))
def test_reading_fetch_equals_the_compiled_codec(version: int) -> None:
    generator = random.Random(version)
    for extremes in (False, True):
        for sample in samples(fetch.FetchRequest, version, 25, extremes=extremes):
            assert isinstance(sample, fetch.FetchRequest)
            data = b"head" + encode(sample, version)
            assert hot.read_fetch_request(memoryview(data), 4, version) == fetch_view(sample, version)
            for broken in spoiled(generator, data[4:]):
                same_outcome(fetch.FetchRequest, version, broken)


def spoiled(generator: random.Random, data: bytes) -> list[bytes]:
    """Cut and mutated variants, and one with unknown tagged fields where the frame ends in an empty section."""
    variants = [data[: generator.randrange(len(data))]]
    for _ in range(6):
        changed = bytearray(data)
        changed[generator.randrange(min(len(data), 80))] = generator.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
        variants.append(bytes(changed))
    if data.endswith(b"\0"):
        variants.append(data[:-1] + b"\x02\x40\x02xy\x41\x00")
    return variants


def same_outcome(cls: type[produce.ProduceRequest] | type[fetch.FetchRequest], version: int, data: bytes) -> None:
    expected: object
    try:
        message = decode(cls, version, data)
        expected = (
            produce_view(message, version)
            if isinstance(message, produce.ProduceRequest)
            else fetch_view(message, version)
        )
    except DecodeError:
        expected = None
    read = hot.read_produce_request if cls is produce.ProduceRequest else hot.read_fetch_request
    actual: object
    try:
        actual = read(memoryview(data), 0, version)
    except DecodeError:
        actual = None
    assert actual == expected


@pytest.mark.parametrize("version", versions_of(produce.ProduceResponse))
def test_writing_produce_equals_the_compiled_codec(version: int) -> None:
    sampler = Sampler(version)
    for _ in range(40):
        sample = sampler.message(produce.ProduceResponse, version)
        assert isinstance(sample, produce.ProduceResponse)
        topics = [
            (
                raw_topic(version, topic.name, topic.topic_id),
                [
                    hot.ProducePartitionResult(
                        part.index,
                        part.error_code,
                        part.base_offset,
                        part.log_append_time_ms,
                        part.log_start_offset,
                        [(error.batch_index, error.batch_index_error_message) for error in part.record_errors],
                        part.error_message,
                        part.current_leader.leader_id,
                        part.current_leader.leader_epoch,
                    )
                    for part in topic.partition_responses
                ],
            )
            for topic in sample.responses
        ]
        endpoints = [hot.NodeEndpointResult(e.node_id, e.host, e.port, e.rack) for e in sample.node_endpoints]
        frame = hot.write_produce_response(version, 77, topics, sample.throttle_time_ms, endpoints)
        assert frame == encode_response(sample, version, 77)


def placeholders(data: object, generator: random.Random) -> list[bytes]:
    """Cut record bytes into parts, as a log that reads from two files would."""
    assert isinstance(data, bytes)
    middle = generator.randint(0, len(data))
    return [part for part in (data[:middle], data[middle:]) if part]


@pytest.mark.parametrize("version", versions_of(fetch.FetchResponse))
def test_writing_fetch_equals_the_compiled_codec(version: int) -> None:
    generator = random.Random(version)
    sampler = Sampler(version)
    for _ in range(40):
        sample = sampler.message(fetch.FetchResponse, version)
        assert isinstance(sample, fetch.FetchResponse)
        topics = []
        for topic in sample.responses:
            results = []
            for part in topic.partitions:
                part.records = part.records or b""
                aborted = part.aborted_transactions
                diverging, leader, snapshot = part.diverging_epoch, part.current_leader, part.snapshot_id
                results.append(
                    hot.FetchPartitionResult(
                        part.partition_index,
                        part.error_code,
                        part.high_watermark,
                        part.last_stable_offset,
                        part.log_start_offset,
                        len(part.records),
                        placeholders(part.records, generator),
                        None if aborted is None else [(a.producer_id, a.first_offset) for a in aborted],
                        part.preferred_read_replica,
                        None if diverging == fetch.EpochEndOffset() else (diverging.epoch, diverging.end_offset),
                        None if leader == fetch.LeaderIdAndEpoch() else (leader.leader_id, leader.leader_epoch),
                        None if snapshot == fetch.SnapshotId() else (snapshot.end_offset, snapshot.epoch),
                    )
                )
            topics.append((raw_topic(version, topic.topic, topic.topic_id), results))
        parts = hot.write_fetch_response(
            version,
            78,
            topics,
            throttle_time_ms=sample.throttle_time_ms,
            error_code=sample.error_code,
            session_id=sample.session_id,
            node_endpoints=[hot.NodeEndpointResult(e.node_id, e.host, e.port, e.rack) for e in sample.node_endpoints],
        )
        assert b"".join(parts) == encode_response(sample, version, 78)


def answer_view(version: int, frame: bytes) -> hot.FetchAnswerView | None:
    try:
        _, answer = decode_response(fetch.FetchResponse, version, frame)
    except DecodeError:
        return None
    partitions = [
        hot.FetchedPartition(
            topic.topic_id.bytes,
            part.partition_index,
            part.error_code,
            part.high_watermark,
            part.log_start_offset,
            memoryview(part.records or b""),
            part.diverging_epoch.epoch,
            part.diverging_epoch.end_offset,
        )
        for topic in answer.responses
        for part in topic.partitions
    ]
    return hot.FetchAnswerView(answer.throttle_time_ms, answer.error_code, answer.session_id, partitions)


@pytest.mark.parametrize("version", range(13, 19))
def test_reading_answers_equals_the_compiled_codec(version: int) -> None:
    """Answers to followers: sampled ones, usual ones, and cut and mutated ones."""
    generator = random.Random(version)
    sampler = Sampler(version)
    for number in range(40):
        sample = sampler.message(fetch.FetchResponse, version)
        assert isinstance(sample, fetch.FetchResponse)
        if number % 2:
            sample.node_endpoints = []
            for topic in sample.responses:
                for index, part in enumerate(topic.partitions):
                    part.diverging_epoch, part.snapshot_id = fetch.EpochEndOffset(), fetch.SnapshotId()
                    part.current_leader = fetch.LeaderIdAndEpoch()
                    part.aborted_transactions = None if index % 2 else []
        frame = encode_response(sample, version, 79)[4:]
        assert hot.read_fetch_answer(memoryview(frame), version) == answer_view(version, frame)
        for broken in spoiled(generator, frame):
            try:
                actual = hot.read_fetch_answer(memoryview(broken), version)
            except DecodeError:
                actual = None
            assert actual == answer_view(version, broken)


def test_records_stand_in_the_response_as_they_were_given() -> None:
    """Placeholders of any kind pass through untouched, in order, and count in the size prefix."""
    first, second = object(), object()
    results = [hot.FetchPartitionResult(0, 0, 10, 10, 0, 1000, [first, second]), hot.FetchPartitionResult(1, 3)]
    parts = hot.write_fetch_response(12, 5, [(b"t", results)])
    assert parts[1] is first
    assert parts[2] is second
    head, tail = parts[0], parts[3]
    assert isinstance(head, bytes)
    assert isinstance(tail, bytes)
    assert int.from_bytes(head[:4], "big") == len(head) - 4 + 1000 + len(tail)


def test_usual_requests_take_the_short_cuts(short_cuts: bool) -> None:
    """Requests of clients and followers are read and answered without the general functions."""
    partition = produce.PartitionProduceData(index=3, records=b"records")
    for version in range(9, 14):
        topic = produce.TopicProduceData(name="t", topic_id=UUID(int=1), partition_data=[partition])
        body = encode(produce.ProduceRequest(transactional_id="x", acks=-1, topic_data=[topic]), version)
        found = wire.read_produce(memoryview(body), 0, version >= 13, 2, hot.ProduceRequestView)
        assert (found is not None) == short_cuts
        assert wire.read_produce(memoryview(body), 0, version >= 13, 1, hot.ProduceRequestView) is None
        result = hot.ProducePartitionResult(3, 0, 5, -1, 0)
        assert (wire.write_produce(version, 1, [(b"t" * 16, [result])], 0) is not None) == short_cuts
    wanted = fetch.FetchPartition(partition=3, fetch_offset=1 << 40)
    for version in range(12, 19):
        topics = [fetch.FetchTopic(topic="t", topic_id=UUID(int=1), partitions=[wanted])]
        state = fetch.ReplicaState(replica_id=7, replica_epoch=1 << 33)
        forgotten = [fetch.ForgottenTopic(topic="f", topic_id=UUID(int=2), partitions=[1, 2])]
        request = fetch.FetchRequest(replica_id=7, topics=topics, forgotten_topics_data=forgotten, rack_id="r")
        request.replica_state = state
        body = encode(request, version)
        view, no_directory = memoryview(body), bytes(16)
        made = (hot.FetchRequestView, hot.FetchPartitionView, no_directory, (1 << 63) - 1)
        found_fetch = wire.read_fetch(view, 0, version, 5, *made)
        assert (found_fetch is not None) == short_cuts
        assert found_fetch is None or found_fetch.replica_id == 7
        assert wire.read_fetch(view, 0, version, 4, *made) is None
        answer = hot.FetchPartitionResult(3, 0, 10, 10, 0, 4, [b"data"], [])
        frame = b"".join(hot.write_fetch_response(version, 1, [(b"t" * 16, [answer])]))[4:]
        if version >= 13:
            seen = wire.read_fetch_answer(memoryview(frame), 5, hot.FetchAnswerView, hot.FetchedPartition)
            assert (seen is not None) == short_cuts
        assert (wire.write_fetch(version, 1, [(b"t" * 16, [answer])], 0, 0, 0) is not None) == short_cuts


def test_unknown_versions_are_refused() -> None:
    for version in (-1, 2, 14):
        with pytest.raises(UnsupportedVersionError):
            hot.read_produce_request(memoryview(b""), 0, version)
        with pytest.raises(UnsupportedVersionError):
            hot.write_produce_response(version, 1, [])
    for version in (3, 19):
        with pytest.raises(UnsupportedVersionError):
            hot.read_fetch_request(memoryview(b""), 0, version)
        with pytest.raises(UnsupportedVersionError):
            hot.write_fetch_response(version, 1, [])


@pytest.mark.parametrize("version", range(15, 19))
def test_writing_a_follower_fetch_equals_the_compiled_codec(version: int) -> None:
    generator = random.Random(version)
    for client_id in ("", "broker-3-fetcher"):
        for topic_count in (0, 1, 3, 200):
            topics = [
                fetch.FetchTopic(
                    topic_id=UUID(int=generator.getrandbits(128)),
                    partitions=[
                        fetch.FetchPartition(
                            partition=number,
                            current_leader_epoch=generator.randrange(-1, 100),
                            fetch_offset=generator.getrandbits(62),
                            last_fetched_epoch=generator.randrange(-1, 100),
                            log_start_offset=generator.getrandbits(40),
                            partition_max_bytes=1 << 20,
                        )
                        for number in range(1 + generator.randrange(3) * 100)
                    ],
                )
                for _ in range(topic_count)
            ]
            request = fetch.FetchRequest(
                replica_state=fetch.ReplicaState(replica_id=3, replica_epoch=generator.getrandbits(50)),
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=10 << 20,
                session_id=generator.getrandbits(31),
                session_epoch=generator.randrange(-1, 100),
                topics=topics,
                forgotten_topics_data=[
                    fetch.ForgottenTopic(
                        topic_id=topic.topic_id, partitions=[part.partition for part in topic.partitions]
                    )
                    for topic in topics[::2]
                ],
            )
            written = hot.write_follower_fetch(fetch_view(request, version), version, 7, client_id.encode())
            assert written == encode_request(request, version, 7, client_id)


@pytest.mark.parametrize("version", [7, 12, 13, 18])
def test_forgotten_partitions_count_as_entries(version):
    """A frame of one megabyte could name 250,000 of them, also where the extension is absent."""
    forgotten = [
        fetch.ForgottenTopic(topic="f", topic_id=UUID(int=2), partitions=range(3)),
        fetch.ForgottenTopic(topic="g", topic_id=UUID(int=3), partitions=range(2)),
    ]
    body = memoryview(encode(fetch.FetchRequest(forgotten_topics_data=forgotten), version))
    view = hot.read_fetch_request(body, 0, version, entries_max=7)
    assert [partitions for _, partitions in view.forgotten_topics] == [(0, 1, 2), (0, 1)]
    with pytest.raises(TooManyEntriesError):
        hot.read_fetch_request(body, 0, version, entries_max=6)
