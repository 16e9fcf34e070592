"""Goal: sessions and checks of acknowledgements answer with Kafka's codes and stay bounded.

Method: the pure cores; every refusal is followed by a proof that nothing has changed.
"""

from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.server.share.core.checks import aborted_ranges, acknowledgement_problem
from moldau_broker.server.share.core.sessions import ShareSessionError, ShareSessions, next_epoch
from moldau_broker.server.share.core.values import AcknowledgementBatch

A, B = (UUID(int=1), 0), (UUID(int=1), 1)
KEY = ("group", "member")


def fetch(sessions, epoch, added=(), forgotten=(), key=KEY, *, acknowledges=False, owner="connection"):
    return sessions.fetch(key, epoch, added, forgotten, acknowledges=acknowledges, owner=owner)


def refused(code, call, *arguments, **options):
    with pytest.raises(ShareSessionError) as caught:
        call(*arguments, **options)
    assert caught.value.code is code


def test_partitions_of_a_session():
    """A session keeps its partitions; a request adds and forgets some, and those with records move to the end."""
    sessions = ShareSessions(sessions_max=2)
    assert list(fetch(sessions, 0, [A, B]).partitions) == [A, B]
    session = fetch(sessions, 1)
    session.rotate([A])
    assert list(session.partitions) == [B, A]
    assert list(fetch(sessions, 2, [A], [B]).partitions) == [A]
    assert sessions.partition_count == 1
    assert sessions.finish(KEY) is session
    assert (len(sessions), sessions.partition_count) == (0, 0)


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_partition_that_is_named_and_forgotten_is_not_read(epoch):
    """A member names a partition for its acknowledgements alone, and forgets it in the same request."""
    sessions = ShareSessions(sessions_max=2)
    if epoch:
        fetch(sessions, 0, [A])
    assert list(fetch(sessions, epoch, [A, B], [B]).partitions) == [A]
    assert sessions.partition_count == 1


def test_epochs():
    """Each request has the next epoch; acknowledgements and fetches share the sequence; it wraps to 1."""
    sessions = ShareSessions(sessions_max=2)
    refused(ErrorCode.SHARE_SESSION_NOT_FOUND, fetch, sessions, 1)
    refused(ErrorCode.SHARE_SESSION_NOT_FOUND, sessions.acknowledge, KEY, 1)
    refused(ErrorCode.SHARE_SESSION_NOT_FOUND, sessions.finish, KEY)
    refused(ErrorCode.INVALID_SHARE_SESSION_EPOCH, sessions.acknowledge, KEY, 0)
    fetch(sessions, 0, [A])
    refused(ErrorCode.INVALID_SHARE_SESSION_EPOCH, fetch, sessions, 2)
    sessions.acknowledge(KEY, 1)
    refused(ErrorCode.INVALID_SHARE_SESSION_EPOCH, sessions.acknowledge, KEY, 1)
    assert fetch(sessions, 2).epoch == 3
    assert next_epoch((1 << 31) - 1) == 1


def test_opening_a_session_again():
    """Epoch 0 replaces the session of the member; it cannot carry acknowledgements."""
    sessions = ShareSessions(sessions_max=1)
    fetch(sessions, 0, [A, B])
    refused(ErrorCode.INVALID_REQUEST, fetch, sessions, 0, [A], acknowledges=True)
    assert sessions.partition_count == 2
    assert list(fetch(sessions, 0, [A], owner="other").partitions) == [A]
    assert [each.key for each in sessions.owned_by("other")] == [KEY]
    assert sessions.owned_by("connection") == []


def test_bounds():
    """Too many sessions or partitions are refused, and nothing has changed."""
    sessions = ShareSessions(sessions_max=1, partitions_max=1)
    refused(ErrorCode.SHARE_SESSION_LIMIT_REACHED, fetch, sessions, 0, [A, B])
    fetch(sessions, 0, [A])
    refused(ErrorCode.SHARE_SESSION_LIMIT_REACHED, fetch, sessions, 0, [A], key=("group", "other"))
    refused(ErrorCode.SHARE_SESSION_LIMIT_REACHED, fetch, sessions, 1, [B])
    assert fetch(sessions, 1, [A]).epoch == 2


@pytest.mark.parametrize(
    ("batches", "renew_allowed", "is_valid"),
    [
        ([(0, 3, [1])], False, True),
        ([(0, 3, [0, 1, 2, 3]), (4, 4, [1])], False, True),
        ([(0, 0, [4])], True, True),
        ([(0, 0, [4])], False, False),
        ([(0, 0, [5])], True, False),
        ([(0, 0, [-1])], True, False),
        ([(0, 3, [1, 1])], False, False),
        ([(0, 3, [])], False, False),
        ([(3, 2, [1])], False, False),
        ([(-1, 2, [1])], False, False),
        ([(0, 3, [1]), (3, 5, [1])], False, False),
    ],
)
def test_checks_of_acknowledgements(batches, renew_allowed, is_valid):
    """Order, overlap, number and range of the types."""
    found = acknowledgement_problem([AcknowledgementBatch(*each) for each in batches], renew_allowed=renew_allowed)
    assert (found is None) == is_valid


def test_aborted_ranges():
    """Batches of aborted transactions, not control batches, not other producers, not other transactions."""
    batches = [
        (0, 5, 7, True, False),
        (5, 8, 7, True, False),
        (8, 9, 7, True, True),
        (9, 12, 7, True, False),
        (12, 14, 8, True, False),
        (14, 16, -1, False, False),
    ]
    assert aborted_ranges(batches, [(8, 12), (7, 0)]) == [(0, 8), (12, 14)]


def test_an_aborted_transaction_begins_with_its_first_offset():
    """An aborted transaction begins with its first offset, not with the first batch of its producer."""
    batches = [
        (0, 3, 7, True, False),
        (3, 4, 7, True, True),
        (4, 6, 7, True, False),
        (6, 7, 7, True, True),
        (7, 9, 7, True, False),
    ]
    assert aborted_ranges(batches, [(7, 4)]) == [(4, 6)]
    assert aborted_ranges(batches, [(7, 0)]) == [(0, 3)]
    assert aborted_ranges(batches, [(7, 7), (7, 0)]) == [(0, 3), (7, 9)]


def test_a_session_ends_with_the_connection_that_used_it_last() -> None:
    """A member that has connected again goes on with its session; the end of the former connection is no news."""
    sessions = ShareSessions(sessions_max=2)
    sessions.fetch(("g", "m"), 0, [], [], acknowledges=False, owner="former")
    session = sessions.fetch(("g", "m"), 1, [], [], acknowledges=False, owner="present")
    assert sessions.owned_by("former") == []
    assert sessions.owned_by("present") == [session]
