"""Goal: a share session obeys the newest rights, and its end is answered when all that it held is stored.

Method: the work of one request alone, with partitions and an authorizer of the test.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import trio
import trio.testing

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.share_fetch import ShareFetchRequest
from moldau_broker.server.handlers.groups.share_delivery import _Work
from moldau_broker.server.share.led_partition import Pending

TOPIC = UUID(int=1)


def work_of(context: Any) -> _Work:
    return _Work(context, SimpleNamespace(identity=None), ShareFetchRequest(group_id="g", member_id="m"))  # type: ignore[arg-type]


def test_rights_that_change_during_a_request_count() -> None:
    """It may wait for minutes, and asks for the rights at each look for records; once for each state of the ACLs."""
    allowed, asked = True, 0

    def decide(*_: object) -> Any:
        nonlocal asked
        asked += 1
        return SimpleNamespace(is_allowed=allowed)

    topics = {TOPIC: SimpleNamespace(name="t", partitions=(0,))}
    partition = SimpleNamespace(check_access=lambda *_, **__: ErrorCode.NONE)
    context: Any = SimpleNamespace(
        authorizer=SimpleNamespace(decide=decide),
        metadata=SimpleNamespace(image=SimpleNamespace(acls=object(), topics_by_id=topics)),
        replicas=SimpleNamespace(by_raw_id={(TOPIC.bytes, 0): partition}),
    )
    work = work_of(context)
    for is_allowed in (True, False, True):
        allowed = is_allowed
        context.metadata.image = SimpleNamespace(acls=object(), topics_by_id=topics)
        expected = partition if is_allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert [work.lookup((TOPIC, 0)) for _ in range(2)] == [expected] * 2
    assert asked == 3


def test_a_session_has_ended_when_its_records_are_free() -> None:
    """The next member asks for them at once; before the release is stored it gets nothing, and waits."""
    acknowledged, released, removed = Pending(), [Pending(), Pending()], []
    shares = SimpleNamespace(sessions=SimpleNamespace(remove=removed.append), release=lambda _: released)
    ended = []

    async def main() -> None:
        work = work_of(SimpleNamespace(share_partitions=shares))
        work.outcomes[TOPIC, 0] = acknowledged

        async def end() -> None:
            await work.end_session()
            ended.append(work.outcomes[TOPIC, 0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            for pending in (acknowledged, *released):
                await trio.testing.wait_all_tasks_blocked()
                assert (removed, ended) == ([("g", "m")], [])
                pending.settle(ErrorCode.FENCED_STATE_EPOCH if pending is acknowledged else ErrorCode.NONE)

    trio.run(main)
    assert ended == [(ErrorCode.FENCED_STATE_EPOCH, None)]
