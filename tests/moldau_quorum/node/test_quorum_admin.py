"""Goal: a change of voters that is refused, or whose outcome is lost with the leadership, has the right answer.

Method: the answers of ``QuorumAdmin`` over a metadata log that refuses, or loses its leadership in the middle. Found by
whole simulated clusters whose voters were changed while leaders died, and by a comparison with Kafka's own answers.
"""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest, Listener
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from moldau_quorum.log.port import (
    Leadership,
    MembershipBusyError,
    MembershipChangeError,
    MembershipTimeoutError,
    NotLeaderError,
    OutcomeUnknownError,
    VoterEndpoint,
)
from moldau_quorum.node.request_queue import NotActiveError
from moldau_quorum.node.voters import leadership_transfer
from moldau_quorum.node.voters.leadership_transfer import (
    UNREACHABLE_S,
    ControllersUnreachableError,
    TransferResponse,
    transfer_leadership,
)
from moldau_quorum.node.voters.quorum_admin import NOT_COMMITTED, QuorumAdmin

NO_DIRECTORY = UUID(int=0)
ADD = AddRaftVoterRequest(voter_id=4, timeout_ms=1_000, listeners=[Listener(name="C", host="c4", port=9093)])
REMOVE = RemoveRaftVoterRequest(voter_id=1)


class LostLog:
    """Three voters; each change ends with ``error``, after the time a change may take if ``late``."""

    def __init__(self, error, *, late=False):
        self.error, self.late = error, late
        self.leadership = Leadership(leader_id=1, epoch=5, active=True)
        self.voters = {number: VoterEndpoint(voter_id=number, host=f"c{number}", port=9093) for number in (1, 2, 3)}
        self.changes = []

    async def add_voter(self, voter):
        self.changes.append(("add", voter.voter_id))
        self.asked = voter
        if self.late:
            await trio.sleep_forever()
        raise self.error

    async def remove_voter(self, voter_id, directory_id=NO_DIRECTORY):
        self.changes.append(("remove", voter_id))
        raise self.error


def admin_of(log):
    machine = SimpleNamespace(image=SimpleNamespace(cluster_id=""))
    return QuorumAdmin(log, machine, brokers=list, listener_name="CONTROLLER")


@pytest.mark.parametrize("error", [OutcomeUnknownError("leadership was lost"), NotLeaderError(2, 7)])
def test_a_lost_leadership_answers_not_controller(error):
    """A lost leadership is answered with NOT_CONTROLLER."""
    admin = admin_of(LostLog(error))

    async def main():
        with pytest.raises(NotActiveError):
            await admin.add_voter(ADD)
        with pytest.raises(NotActiveError):
            await admin.remove_voter(REMOVE)

    trio.run(main)


def test_a_learner_that_did_not_catch_up_is_forgotten():
    """A node that did not catch up is forgotten, even when that is not certain.

    The answer comes while the requester still waits: a broker that forwards the request waits as long as it says.
    """
    log = LostLog(OutcomeUnknownError("leadership was lost"), late=True)

    async def main():
        with trio.fail_after(ADD.timeout_ms / 1000):
            return await admin_of(log).add_voter(ADD)

    response = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert response.error_message == (
        "node 4 did not catch up at c4:9093 within 0.8 s, and was not added: does it run, with that id and address?"
    )
    assert log.changes == [("add", 4), ("remove", 4)]


def test_an_addition_that_may_take_effect_is_not_called_undone():
    """The change is in the log when its time is over, and only its commit is missing: the node may vote soon."""
    log = LostLog(OutcomeUnknownError("leadership was lost"))

    async def add_voter(voter):
        log.voters[voter.voter_id] = voter
        await trio.sleep_forever()

    log.add_voter = add_voter
    response = trio.run(admin_of(log).add_voter, ADD, clock=trio.testing.MockClock(autojump_threshold=0))
    assert (response.error_code, response.error_message) == (ErrorCode.REQUEST_TIMED_OUT, NOT_COMMITTED)
    assert log.changes == [], "nothing is taken back"


def test_only_the_leader_says_who_votes():
    """Another controller may not know the newest voters: its refusal would be wrong, and final for the requester."""
    log = LostLog(NotLeaderError(2, 7))
    log.leadership = Leadership(leader_id=2, epoch=5)
    voting = AddRaftVoterRequest(voter_id=3, listeners=ADD.listeners)
    unlisted = AddRaftVoterRequest(voter_id=4, listeners=[])

    async def main():
        for request in (ADD, voting, unlisted):
            with pytest.raises(NotActiveError):
                await admin_of(log).add_voter(request)
        for request in (REMOVE, RemoveRaftVoterRequest(voter_id=9)):
            with pytest.raises(NotActiveError):
                await admin_of(log).remove_voter(request)

    trio.run(main)
    assert log.changes == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MembershipBusyError("another change"), ErrorCode.REQUEST_TIMED_OUT),
        (MembershipTimeoutError("no answer"), ErrorCode.REQUEST_TIMED_OUT),
        (MembershipChangeError("it cannot be"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_change_behind_another_one_may_be_tried_again(error, code):
    async def main():
        answers = [await admin_of(LostLog(error)).add_voter(ADD), await admin_of(LostLog(error)).remove_voter(REMOVE)]
        assert [(each.error_code, each.error_message) for each in answers] == [(code, str(error))] * 2

    trio.run(main)


@pytest.mark.parametrize(
    ("names", "port"),
    [(["OTHER"], 1), (["OTHER", "controller"], 2), (["CONTROLLER", "OTHER"], 1), (["A", "B"], None), ([], None)],
)
def test_a_new_voter_is_reached_at_the_listener_of_controllers(names, port):
    """A client that names a single listener may not know how the controllers call it."""
    log = LostLog(MembershipChangeError("stop here"))
    listeners = [Listener(name=name, host="c4", port=number) for number, name in enumerate(names, 1)]
    answer = trio.run(admin_of(log).add_voter, AddRaftVoterRequest(voter_id=4, listeners=listeners))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert (log.asked.port if log.changes else None) == port


def test_an_uncommitted_addition_is_not_denied():
    """The node has caught up and votes, but no majority has the change: it may still come into force."""
    log = LostLog(None, late=True)

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(voted_for)
            return await admin_of(log).add_voter(ADD)

    async def voted_for():
        await trio.sleep(0.5)
        log.voters[4] = VoterEndpoint(voter_id=4, host="c4", port=9093)

    response = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert response.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert "may still take effect" in response.error_message
    assert log.changes == [("add", 4)]


VOTERS = {1: ("c1", 9093), 2: ("c2", 9093)}
LATER_CODE = 30_000


def moved(monkeypatch, code_at):
    """Returns the new leader; ``code_at`` is what the controllers answer at a time, in seconds."""

    async def ask(*_):
        await trio.sleep(0.1)
        code = code_at(trio.current_time())
        if code is None:
            raise ConnectionError("refused")
        return TransferResponse(error_code=code, message="", leader_id=2)

    monkeypatch.setattr(leadership_transfer, "_ask", ask)
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(lambda: transfer_leadership(None, VOTERS), clock=clock)


def test_an_election_is_waited_for(monkeypatch):
    """All controllers answer, but none leads for longer than unreachable ones would be waited for."""
    end_s = 2 * UNREACHABLE_S
    assert moved(monkeypatch, lambda now: ErrorCode.NOT_CONTROLLER if now < end_s else ErrorCode.NONE) == 2


def test_controllers_that_are_not_reached_are_given_up(monkeypatch):
    with pytest.raises(ControllersUnreachableError, match="controller 1 at c1:9093: refused; controller 2"):
        moved(monkeypatch, lambda now: None)


def test_controllers_that_hang_are_named_with_the_cause(monkeypatch):
    """A time limit has no text of its own: the error named the controllers, and nothing behind each."""

    async def ask(*_):
        with trio.fail_after(1):
            await trio.sleep_forever()

    monkeypatch.setattr(leadership_transfer, "_ask", ask)
    clock = trio.testing.MockClock(autojump_threshold=0)
    with pytest.raises(ControllersUnreachableError, match="controller 1 at c1:9093: no answer; controller 2"):
        trio.run(lambda: transfer_leadership(None, VOTERS), clock=clock)


def test_a_code_of_later_versions_refuses_a_hand_over(monkeypatch):
    with pytest.raises(KafkaError) as caught:
        moved(monkeypatch, lambda now: LATER_CODE)
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_learner_is_forgotten_with_its_disk_alone():
    """It was replaced meanwhile: a node of the same id with another disk catches up."""
    log, removed = LostLog(None, late=True), []
    wanted = AddRaftVoterRequest(voter_id=4, voter_directory_id=UUID(int=7), timeout_ms=1_000, listeners=ADD.listeners)

    async def remove_voter(voter_id, directory_id=NO_DIRECTORY):
        await trio.lowlevel.checkpoint()
        removed.append((voter_id, directory_id))

    log.remove_voter = remove_voter
    trio.run(admin_of(log).add_voter, wanted, clock=trio.testing.MockClock(autojump_threshold=0))
    assert removed == [(4, UUID(int=7))]
