"""Goal: sessions of members of streams groups end, whatever becomes of the writes of their joins and leaves.

Method: the pure core, with writes that the test holds back or refuses.
"""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode
from support.coordinator.streams_world import SESSION_MS, StreamsClient, group_of, settle, streams_driver


def test_a_session_that_ends_during_the_join_counts() -> None:
    driver = streams_driver()
    driver.auto_commit = False
    StreamsClient(driver, "m").send()
    driver.pass_time(SESSION_MS + 1_000)
    driver.auto_commit = True
    driver.commit()
    assert not group_of(driver).members


def test_a_session_that_ends_during_a_failed_leave_counts() -> None:
    """The session ends while the write is pending that the log refuses in the end."""
    driver = streams_driver()
    member = StreamsClient(driver, "m")
    settle([member])
    driver.pass_time(SESSION_MS - 1_000)
    assert set(group_of(driver).members) == {"m"}
    driver.auto_commit = False
    request = member.request()
    request.member_epoch = -1
    driver.send(request, 1)
    driver.pass_time(2_000)
    driver.auto_commit = True
    driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    driver.commit()
    assert not group_of(driver).members
