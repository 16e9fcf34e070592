"""Hypothesis chooses what happens to a quorum, step by step, and shrinks what breaks it.

The model is the committed log that ``RaftInvariants`` keeps: all that was acknowledged must stand in it for good, and
after every rule all invariants hold. At the end everything is healed and must come together.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from moldau_quorum.log.port import LogLimits
from support.proof import examples
from support.raft.world import World

NODES = st.integers(1, 3)


class QuorumMachine(RuleBasedStateMachine):
    """Three voters; time passes only in ``run``."""

    @initialize(seed=st.integers(0, 1 << 16), entries=st.sampled_from([4, 12, 1000]), kept=st.sampled_from([0, 300]))
    def begin(self, seed, entries, kept):
        limits = LogLimits(snapshot_after_entries=entries, log_bytes_kept=kept, segment_bytes=500, append_bytes_max=200)
        self.world = World(seed, limits=limits)
        for number in self.world.members:
            self.world.start(number)

    @rule(milliseconds=st.integers(1, 400))
    def run(self, milliseconds):
        self.world.run_until(self.world.now + milliseconds)

    @rule(count=st.integers(1, 8))
    def propose(self, count):
        for member in self.world.active():
            for _ in range(count):
                if member.node is not None:
                    self.world.propose(member)

    @rule()
    def read(self):
        for member in self.world.active():
            self.world.read(member)

    @rule(number=NODES, power=st.booleans())
    def crash(self, number, power):
        if self.world.members[number].node is not None:
            self.world.crash(number, power_loss=power)

    @rule(number=NODES, writes=st.integers(1, 12), power=st.booleans())
    def crash_at_write(self, number, writes, power):
        self.world.arm_crash(number, writes, power_loss=power)

    @rule(number=NODES)
    def restart(self, number):
        if self.world.members[number].node is None:
            self.world.start(number)

    @rule(sender=NODES, recipient=NODES)
    def cut(self, sender, recipient):
        if sender != recipient:
            self.world.links[sender, recipient].cut = True

    @rule()
    def mend(self):
        for link in self.world.links.values():
            link.cut = False

    @rule(number=NODES)
    def snapshot(self, number):
        member = self.world.members[number]
        if member.node is not None:
            self.world.guard(member, member.node.take_snapshot)

    @rule(number=NODES)
    def transfer(self, number):
        for member in self.world.active():
            leader = member.node.core.leader
            if leader is not None and number != member.node_id:
                self.world.guard(member, leader.transfer, number)

    def teardown(self):
        if hasattr(self, "world"):
            self.world.converge()
            self.world.invariants.final()


QuorumMachine.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
TestQuorum = QuorumMachine.TestCase
