"""Elections on a disk so slow that the next election begins before the vote for oneself is durable."""

from moldau_quorum.log.port import ElectionTiming, LogLimits, VoterEndpoint
from moldau_quorum.log.raft.core.entry_log import EntryLog
from moldau_quorum.log.raft.core.messages import VoteResponse
from moldau_quorum.log.raft.core.raft_core import RaftCore
from moldau_quorum.log.raft.core.ready import Role
from moldau_quorum.log.raft.core.types import Configuration, HardState

VOTERS = Configuration(voters={n: VoterEndpoint(voter_id=n, host="h", port=1) for n in (1, 2, 3)})
TIMING = ElectionTiming(election_timeout_ms_min=100, election_timeout_ms_max=200, heartbeat_interval_ms=50)


def test_a_vote_durable_after_its_election_does_not_count():
    """A candidate's own vote that becomes durable after its election does not count."""
    core = RaftCore(
        node_id=1,
        timing=TIMING,
        limits=LogLimits(),
        seed=1,
        now_ms=0.0,
        hard_state=HardState(epoch=3),
        log=EntryLog(0, 0, ()),
        snapshot=None,
        bootstrap=VOTERS,
    )
    core.tick(1_000.0)
    core.synced(core.take_ready().number)
    core.receive(2, VoteResponse(epoch=4, pre_vote=True, granted=True), 1_001.0)
    assert core.role is Role.CANDIDATE
    slow = core.take_ready()
    core.tick(2_000.0)
    assert core.role is Role.PRECANDIDATE
    core.synced(slow.number)
    assert core.role is Role.PRECANDIDATE
    core.receive(2, VoteResponse(epoch=4, pre_vote=False, granted=True), 2_001.0)
    assert core.role is Role.PRECANDIDATE
