"""Goal: Kafka Streams runs unmodified in both group protocols, and counts each word once while a broker is killed.

Method: a word count with exactly_once_v2, compiled from Maven's jars. It repartitions, keeps a changelog, and emits
every count of a word as a record, so a word that is counted twice or lost shows as a repeated or missing number.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.blocking import Admin
from moldau_jepsen.testing import cluster
from support.interop.word_count import NEWEST, VERSION, WORDS, line, streams_jars, word_count

if TYPE_CHECKING:
    from pathlib import Path

LINES = 600
KILL_AFTER = 200
STALLED_S = 150
"""An application that counts nothing for so long is stuck: longer than its session, transaction and task timeouts."""
DEADLINE_S = 900
EXPECTED = Counter(word for number in range(LINES) for word in line(number).split())


@pytest.mark.proof
@pytest.mark.parametrize(("protocol", "version"), [("streams", VERSION), ("streams", NEWEST), ("classic", VERSION)])
def test_words_are_counted_once_while_a_broker_is_killed(protocol: str, version: str, tmp_path: Path) -> None:
    """The client of the newest version joins with static members, which older brokers of Kafka refuse."""
    jars, reason = streams_jars(version)
    if jars is None:
        pytest.skip(reason)
    with cluster(brokers=3) as brokers:
        creator = AdminClient({"bootstrap.servers": brokers.bootstrap})
        for created in creator.create_topics([NewTopic("lines", 3, 3), NewTopic("word-counts", 3, 3)]).values():
            created.result(60)
        application = word_count(jars, brokers.bootstrap, protocol, tmp_path, "counter" if version == NEWEST else None)
        try:
            counts = feed_and_read(brokers)
            with Admin({"bootstrap.servers": brokers.bootstrap}) as admin:
                types = {group.group_id: group.type for group in admin.list_groups()}
        finally:
            application.terminate()
            application.wait(60)
    log = (tmp_path / "application.log").read_text(errors="replace")[-2_000:]
    for word in WORDS:
        assert sorted(counts[word]) == list(range(1, EXPECTED[word] + 1)), f"{word} with {protocol}: {log}"
    assert types["word-count"] == protocol


def feed_and_read(brokers) -> dict[str, list[int]]:
    """Produces all lines, kills a broker on the way, and reads counts until every word has its last one.

    It gives up when counts stop coming, not when they are slow.
    """
    config = {"bootstrap.servers": brokers.bootstrap}
    producer = Producer({**config, "enable.idempotence": True})
    consumer = Consumer(
        {**config, "group.id": "reader", "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["word-counts"])
    counts: dict[str, list[int]] = defaultdict(list)
    sent = 0
    begun = counted = time.monotonic()
    while any(max(counts[word], default=0) < EXPECTED[word] for word in WORDS):
        now = time.monotonic()
        if now - counted > STALLED_S or now - begun > DEADLINE_S:
            break  # the caller shows which counts are missing
        if sent < LINES and (sent < KILL_AFTER or any(counts.values())):
            for number in range(sent, sent + 20):
                producer.produce("lines", line(number), str(number))
            producer.flush()
            sent += 20
            if sent == KILL_AFTER + 20:
                brokers.kill(1)
        record = consumer.poll(0.2)
        if record is not None and record.error() is None:
            counts[record.key().decode()].append(int(record.value()))
            counted = time.monotonic()
    consumer.close()
    return counts
