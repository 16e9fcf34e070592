"""Goal: a member in a state that only a newer coordinator knows may join, and does no harm, after a downgrade.

Method: the pure core, which loads a record with such a state.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.group.consumer.core.records import change_record
from moldau_broker.coordinator.group.consumer.core.state import Current, MemberState
from moldau_broker.coordinator.runtime.effects import Append
from support.coordinator.consumer_world import GROUP, ConsumerClient
from support.coordinator.group_world import CoreDriver
from support.coordinator.migration_world import COOPERATIVE, EAGER, JOIN, ClassicClient


@pytest.mark.parametrize(
    ("protocol", "is_current", "code"),
    [
        (COOPERATIVE, True, ErrorCode.UNKNOWN_MEMBER_ID),
        (EAGER, False, ErrorCode.UNKNOWN_MEMBER_ID),
        (EAGER, True, ErrorCode.NONE),
    ],
)
def test_a_classic_member_must_own_nothing(protocol: str, is_current: bool, code: ErrorCode) -> None:
    """Nothing here records how it was given what it reports, or it reports nothing that counts."""
    driver = CoreDriver()
    client = ClassicClient(driver, protocol)
    for _ in range(6):
        client.beat()
        driver.pass_time(3_000)
    ConsumerClient(driver, "c").beat()
    client.beat()
    client.beat()
    assert client.reading
    member = driver.core.consumers.committed[GROUP].members[client.member_id]
    changed = replace(member, state=MemberState.UNKNOWN, epoch=client.epoch if is_current else client.epoch + 1)
    record = change_record(Current(group_id=GROUP, member_id=member.member_id, member=changed))
    driver.log.append(Append(append_id=0, records=(record,)))
    driver.fail_over()
    client.phase = JOIN
    assert driver.answers[client.send()].error_code == code  # type: ignore[attr-defined]
