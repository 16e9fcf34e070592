"""Goal: members in Java, Go and C share groups, while the group rolls from one protocol to the other and back.

Method: kafka-clients 4.2, franz-go and librdkafka against three brokers. Members are replaced one by one, so that both
protocols are in one group meanwhile. Each record must arrive, and once: members commit what they have read before
they leave.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

import moldau.blocking
from moldau.admin import ConfigAlteration, ConfigResource, ResourceType
from support.interop.clients import ConfluentClient, wait_until
from support.interop.members import Program, go_member, java_command

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
PARTITIONS = {0, 1, 2}


class Librdkafka:
    """A member of librdkafka that works in a thread, with the attributes of a ``Program``."""

    def __init__(self, bootstrap: str, group: str, topic: str, kind: str) -> None:
        self.records: list[tuple[str, ...]] = []
        self.owned: set[int] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": kind,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([topic])
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while not self._ended.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.records.append((str(message.partition()), str(message.offset()), message.value().decode()))
                self._consumer.commit(message, asynchronous=False)
            self.owned = {each.partition for each in self._consumer.assignment()}
        self._consumer.close()

    def look(self) -> None:
        pass

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


class Group:
    """Members of one group, what they read, and what was produced for them."""

    def __init__(self, bootstrap: str, topic: str, start: Callable[[str, str, str], Program | Librdkafka]) -> None:
        self._bootstrap, self._topic, self._start = bootstrap, topic, start
        self.name = f"foreign-{topic}"
        self.members: list[Program | Librdkafka] = []
        self._gone: list[tuple[str, ...]] = []
        self._produced = 0

    def join(self, language: str, kind: str) -> Program | Librdkafka:
        member = self._start(language, kind, self.name)
        self.members.append(member)
        return member

    def leave(self, member: Program | Librdkafka) -> None:
        self.members.remove(member)
        member.end()
        self._gone += member.records

    def records(self) -> list[tuple[str, ...]]:
        for member in self.members:
            member.look()
        return [*self._gone, *(record for member in self.members for record in member.records)]

    def is_shared(self) -> bool:
        self.records()
        return sorted(part for member in self.members for part in member.owned) == sorted(PARTITIONS) and all(
            member.owned for member in self.members
        )

    def works(self, kind: str) -> None:
        """All members share the partitions, read 30 new records once, and the group has this type."""
        wait_until(self.is_shared, f"{len(self.members)} members share: {[each.owned for each in self.members]}", 120)
        values = [str(self._produced + number).encode() for number in range(30)]
        ConfluentClient(self._bootstrap).produce(self._topic, [(value, value, []) for value in values])
        self._produced += len(values)
        wait_until(lambda: len(self.records()) >= self._produced, "all records are read", 120)
        assert sorted(int(record[2]) for record in self.records()) == list(range(self._produced))
        with moldau.blocking.Admin({"bootstrap.servers": self._bootstrap}) as admin:
            found = admin.describe_groups([self.name])[self.name]
        assert (found.type, len(found.members)) == (kind, len(self.members))


@pytest.fixture
def group(bootstrap, topic, tmp_path):
    java, no_java = java_command(tmp_path)
    numbers = iter(range(100))

    def start(language: str, kind: str, name: str) -> Program | Librdkafka:
        log = tmp_path / f"{language}-{next(numbers)}.log"
        if language == "c":
            return Librdkafka(bootstrap, name, topic, kind)
        if language == "java":
            if java is None:
                pytest.skip(no_java)
            return Program(java, bootstrap, name, topic, kind, log)
        program, reason = go_member()
        if program is None:
            pytest.skip(reason)
        return Program([str(program)], bootstrap, name, topic, kind, log)

    made = Group(bootstrap, topic, start)
    yield made
    for member in list(made.members):
        with contextlib.suppress(AssertionError):
            made.leave(member)


def test_members_of_two_languages_roll_between_protocols(group):
    """Java and C: classic, both protocols in one group, consumer, and back."""
    java, other = group.join("java", "classic"), group.join("c", "classic")
    group.works("classic")
    group.leave(other)
    other = group.join("c", "consumer")
    group.works("consumer")  # the classic Java member goes on in the converted group
    group.leave(java)
    java = group.join("java", "consumer")
    group.works("consumer")
    group.leave(java)
    java = group.join("java", "classic")
    group.works("consumer")
    group.leave(other)  # the last member of the new protocol
    other = group.join("c", "classic")
    group.works("classic")


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_a_go_client_shares_with_java(group, kind):
    go = group.join("go", kind)
    java = group.join("java", kind)
    group.works(kind)
    group.leave(java)
    group.works(kind)
    assert not go.errors


def test_a_share_consumer_of_java(bootstrap, topic, tmp_path):
    """Explicit mode: released records come again with a higher count, rejected ones do not; ours takes over."""
    java, reason = java_command(tmp_path)
    if java is None:
        pytest.skip(reason)
    name = f"share-{topic}"
    with moldau.blocking.Admin({"bootstrap.servers": bootstrap}) as admin:
        resource = ConfigResource(ResourceType.GROUP, name)
        admin.alter_configs({resource: [ConfigAlteration(name="share.auto.offset.reset", value="earliest")]})
    values = [str(number).encode() for number in range(30)]
    ConfluentClient(bootstrap).produce(topic, [(value, value, []) for value in values])
    member = Program(java, bootstrap, name, topic, "share", tmp_path / "share.log")
    try:
        member.wait(lambda it: len(it.records) >= 40, "every record, and every third again")
    finally:
        member.end()
    assert not member.errors
    found = sorted((int(value), int(count), kind) for _, _, value, count, kind in member.records)
    expected = [(number, 1, "release") for number in range(0, 30, 3)]
    expected += [
        (number, 2 if number % 3 == 0 else 1, "reject" if number % 5 == 0 else "accept") for number in range(30)
    ]
    assert [(number, count, kind.lower()) for number, count, kind in found] == sorted(expected)
    with moldau.blocking.ShareConsumer({"bootstrap.servers": bootstrap, "group.id": name}) as ours:
        ours.subscribe([topic])
        assert ours.poll(3_000) == []
