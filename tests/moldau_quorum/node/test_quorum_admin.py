"""Goal: a change of voters whose outcome is lost with the leadership is answered, and is no failed request.

Method: the answers of ``QuorumAdmin`` over a metadata log that loses its leadership in the middle. Found by whole
simulated clusters whose voters were changed while leaders died.
"""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest
import trio
import trio.testing

from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest, Listener
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from moldau_quorum.log.port import NotLeaderError, OutcomeUnknownError, VoterEndpoint
from moldau_quorum.node.request_queue import NotActiveError
from moldau_quorum.node.voters.quorum_admin import QuorumAdmin

NO_DIRECTORY = UUID(int=0)
ADD = AddRaftVoterRequest(voter_id=4, timeout_ms=1_000, listeners=[Listener(name="C", host="c4", port=9093)])
REMOVE = RemoveRaftVoterRequest(voter_id=1)


class LostLog:
    """Three voters; each change ends with ``error``, after the time a change may take if ``late``."""

    def __init__(self, error, *, late=False):
        self.error, self.late = error, late
        self.voters = {number: VoterEndpoint(voter_id=number, host=f"c{number}", port=9093) for number in (1, 2, 3)}
        self.changes = []

    async def add_voter(self, voter):
        self.changes.append(("add", voter.voter_id))
        if self.late:
            await trio.sleep_forever()
        raise self.error

    async def remove_voter(self, voter_id, directory_id=NO_DIRECTORY):
        self.changes.append(("remove", voter_id))
        raise self.error


def admin_of(log):
    return QuorumAdmin(log, SimpleNamespace(image=SimpleNamespace(cluster_id="")), listener_name="CONTROLLER")


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
