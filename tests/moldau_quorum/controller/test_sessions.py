"""Goal: sessions know what the controller has heard of each broker, and nothing of its former incarnations.

Method: the pure sessions alone.
"""

from moldau.values import BrokerId
from moldau_quorum.controller.cluster.sessions import BrokerSessions

BROKER, OTHER = BrokerId(1), BrokerId(2)


def test_new_incarnation_begins_without_shutdown_and_offset() -> None:
    """Else its own shutdown would wait for an offset that the others have long applied, and hide what it lacks."""
    sessions = BrokerSessions(timeout_ms=9_000, grace_ms=250)
    sessions.touch(OTHER, 2, 0, connection=None, metadata_offset=900)
    former = sessions.touch(BROKER, 3, 0, connection="former", metadata_offset=700)
    former.shutdown_offset = 650
    assert sessions.touch(BROKER, 3, 100, connection="former", metadata_offset=600).metadata_offset == 700
    present = sessions.touch(BROKER, 8, 200, connection="present")
    assert (present.broker_epoch, present.shutdown_offset, present.metadata_offset) == (8, -1, -1)
    assert sessions.lowest_offset(OTHER, 200) == -1
    sessions.end(BROKER, 3, 300)
    assert sessions.alive(BROKER, 300), "the death of the former process is no news about the present one"


def test_a_stall_of_the_controller_is_no_silence_of_brokers() -> None:
    """No heartbeat could be received meanwhile: neither the end of a session nor the silence before it comes nearer."""
    sessions = BrokerSessions(timeout_ms=9_000, grace_ms=250)
    sessions.touch(BROKER, 3, 100, connection=None)
    sessions.extend(4_000)
    assert sessions.next_deadline_ms() == 13_100
    assert sessions.earliest_heard_ms() == 4_100
    assert sessions.unheard(4_099) == []


def test_a_closed_connection_is_silence_until_a_heartbeat() -> None:
    """For the grace period a probe may end the session; another connection, and another incarnation, end nothing."""
    sessions = BrokerSessions(timeout_ms=9_000, grace_ms=250)
    sessions.touch(BROKER, 3, 0, connection="first")
    sessions.touch(OTHER, 2, 0, connection="other")
    assert not sessions.silent(BROKER, 3, 50)
    assert sessions.connection_closed("first", 100) == [BROKER]
    assert [sessions.silent(BROKER, epoch, 100) for epoch in (2, 3, 4)] == [False, True, False]
    assert not sessions.silent(OTHER, 2, 100)
    assert sessions.connection_closed("first", 200) == [], "its broker is known to be silent"
    assert [sessions.silent(BROKER, 3, now_ms) for now_ms in (349, 350)] == [True, False]
    assert sessions.expired(350) == [BROKER]
    sessions.touch(BROKER, 3, 300, connection="second")
    assert not sessions.silent(BROKER, 3, 300)
    assert sessions.connection_closed("first", 310) == []
    assert sessions.expired(9_299) == [OTHER]
