"""Goal: share groups while a write, or a question to a share coordinator, is pending.

Method: the pure core, with writes that the test holds back or refuses.
"""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode
from support.coordinator.group_world import CoreDriver
from support.coordinator.share_group_world import GROUP, ShareClient, beat, error_of

SESSION_MS = 45_000


def members_of(driver: CoreDriver) -> set[str]:
    return set(driver.core.shares.committed[GROUP].members)


def test_a_session_that_ends_during_the_join_counts() -> None:
    driver = CoreDriver(auto_commit=False)
    driver.send(beat("m", 0, ("t",)), 1)
    driver.pass_time(SESSION_MS + 1_000)
    driver.auto_commit = True
    driver.commit()
    assert not members_of(driver)


def test_a_session_that_ends_during_a_failed_leave_counts() -> None:
    """The session ends while the write is pending that the log refuses in the end."""
    driver = CoreDriver()
    client = ShareClient(driver, "m")
    client.beat(0)
    client.beat()
    driver.pass_time(SESSION_MS - 1_000)
    assert members_of(driver) == {"m"}
    driver.auto_commit = False
    driver.send(beat("m", -1), 1)
    driver.pass_time(2_000)
    driver.auto_commit = True
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.commit()
    assert not members_of(driver)


def test_requests_are_refused_while_a_write_is_overdue() -> None:
    """They would wait for a log that may not answer for long; the client tries again."""
    driver = CoreDriver(auto_commit=False)
    driver.send(beat("m", 0, ("t",)), 1)
    driver.pass_time(5_000)
    refused = driver.send(beat("n", 0, ("t",)), 1)
    assert error_of(driver.answers[refused]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.commit()
    taken = driver.send(beat("n", 0, ("t",)), 1)
    driver.commit()
    assert error_of(driver.answers[taken]) is ErrorCode.NONE


def test_a_share_coordinator_is_asked_once_at_a_time() -> None:
    driver = CoreDriver(auto_commit=False)
    for member in ("m", "n"):
        driver.send(beat(member, 0, ("t",)), 1)
        driver.commit()
    assert len(driver.questions) == 1
    driver.answer_questions()
    driver.commit()
    assert not driver.questions
