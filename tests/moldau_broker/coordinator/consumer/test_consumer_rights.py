"""Goal: a regular expression gives a member no topic that its client may not describe.

Method: members with different rights against the pure core; ACLs change, members come and go, the coordinator moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from moldau.values import BrokerId
from moldau_broker.server.coordination.catalogue import ImageCatalogue
from support.coordinator.consumer_world import ConsumerClient, group_of, reloaded, settle
from support.coordinator.group_world import CoreDriver


@dataclass(frozen=True)
class Right:
    """The rights of a user, which ``acls`` lists at the moment of the question."""

    user: str

    def allows(self, topic: str) -> bool:
        return topic in ACLS[self.user]


ACLS: dict[str, set[str]] = {}


def driver_of(**acls: str) -> CoreDriver:
    driver = CoreDriver()
    driver.topics.counts = {"t": 2, "u": 2}
    ACLS.clear()
    for user, topics in acls.items():
        ACLS[user] = set(topics)
        driver.rights[user] = Right(user)
    return driver


def member(driver: CoreDriver, user: str, regex: str = ".") -> ConsumerClient:
    return ConsumerClient(driver, user, (), regex=regex)


def topics_read(driver: CoreDriver, *clients: ConsumerClient) -> set[str | None]:
    return {driver.topics.topic_name(topic) for client in clients for topic, _ in client.reading}


def test_topics_that_may_not_be_described_are_left_out() -> None:
    driver = driver_of(a="t")
    a = member(driver, "a")
    settle([a])
    assert topics_read(driver, a) == {"t"}
    assert group_of(driver).regexes["."].topics == ("t",)
    assert reloaded(driver) == group_of(driver)


def test_new_rights_take_effect_with_the_next_heartbeat() -> None:
    driver = driver_of(a="t")
    a = member(driver, "a")
    settle([a])
    ACLS["a"] = {"u"}
    driver.topics.acl_changes += 1
    settle([a])
    assert topics_read(driver, a) == {"u"}


def test_members_of_one_expression_share_what_all_may_describe() -> None:
    driver = driver_of(a="tu", b="u")
    a, b = member(driver, "a"), member(driver, "b")
    settle([a])
    assert topics_read(driver, a) == {"t", "u"}
    settle([a, b])
    assert topics_read(driver, a, b) == {"u"}
    b.leave()
    settle([a])
    assert topics_read(driver, a) == {"t", "u"}, "nothing that the catalogue counts has changed"


def test_members_of_other_expressions_keep_their_rights() -> None:
    driver = driver_of(a="tu", b="u")
    a, b = member(driver, "a"), member(driver, "b", "[tu]")
    settle([a, b])
    assert topics_read(driver, a) == {"t", "u"} or len(a.reading) == 2
    assert topics_read(driver, b) <= {"u"}


def test_no_right_is_gained_when_the_coordinator_moves() -> None:
    """The new coordinator has heard of one member only; the other one's topics stay as the log has them."""
    driver = driver_of(a="tu", b="u")
    a, b = member(driver, "a"), member(driver, "b", "[tu]")
    settle([a, b])
    driver.fail_over()
    a.beat()
    assert group_of(driver).regexes["[tu]"].topics == ("u",)
    settle([a, b])
    assert topics_read(driver, b) <= {"u"}


def test_rights_of_gone_members_are_forgotten() -> None:
    driver = driver_of(a="t", b="t")
    a, b = member(driver, "a"), member(driver, "b")
    settle([a, b])
    b.leave()
    assert list(driver.core.consumers._served.all["g"].rights) == ["a"]


def test_without_an_authorizer_all_matching_topics_count() -> None:
    driver = driver_of()
    a = member(driver, "a")
    settle([a])
    assert topics_read(driver, a) == {"t", "u"}


def test_the_topics_of_a_broker_change_with_its_acls() -> None:
    """Groups look at their expressions again when the version moves, and at no other change of the metadata."""
    image = SimpleNamespace(topics_by_name={"t": None}, acls=object(), offset=5)
    metadata: Any = SimpleNamespace(image=image)
    catalogue = ImageCatalogue(metadata, BrokerId(1))
    versions = [catalogue.version()]
    changes: list[dict[str, Any]] = [{}, {"acls": object()}, {"topics_by_name": {"t": None, "u": None}}]
    for number, change in enumerate(changes):
        metadata.image = SimpleNamespace(**{**vars(metadata.image), "offset": 6 + number, **change})
        versions.append(catalogue.version())
    assert versions == [5, 5, 7, 8]
