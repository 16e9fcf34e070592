"""Changes of the membership, one at a time, and the hand-over of the leadership (KIP-853).

An added node is a learner first. While it catches up, the request may be cancelled and the leader may change. A leader
that is not adding a learner therefore drops it after a while, so that no learner stays forever.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from moldau.values import ZERO_UUID, join_address
from moldau_quorum.log.port import (
    LogBusyError,
    MembershipBusyError,
    MembershipChangeError,
    MembershipTimeoutError,
    NotLeaderError,
    OutcomeUnknownError,
    VoterEndpoint,
)
from moldau_quorum.log.raft.proposals import RaftProposal

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Sequence

    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.tasks.sync import Signal
    from moldau.runtime.telemetry.log import EventLogger
    from moldau_quorum.log.port import MetadataLogConfig
    from moldau_quorum.log.raft.core.types import Configuration
    from moldau_quorum.log.raft.engine_node import EngineNode
    from moldau_quorum.log.raft.waiting import Pending

CATCH_UP_TIMEOUT_MS: Final = 60_000
"""How long a new voter may take to catch up before it is dropped again."""
FIRST_ANSWER_MS: Final = 15_000
"""How long a new voter may give no answer at all. One that has just been started opens its files first."""
ABANDONED_MS: Final = 5_000
"""How long a learner may wait for the request that adds it to be sent again, to the next leader for one."""


class VoterChanges:
    """The engine's part of the membership calls of the port."""

    def __init__(
        self,
        environment: Environment,
        config: MetadataLogConfig,
        *,
        node: Callable[[], EngineNode | None],
        progressed: Signal,
        kick: Callable[[], None],
        logger: EventLogger,
    ) -> None:
        """``kick`` wakes the driver; ``progressed`` is notified whenever the node has moved."""
        self._environment = environment
        self._config = config
        self._node_or_none = node
        self._progressed = progressed
        self._kick = kick
        self._log = logger
        self._changing = False

    def _active_node(self) -> EngineNode:
        node = self._node_or_none()
        if node is None:
            raise NotLeaderError(-1, 0)
        if not node.leadership.active:
            raise NotLeaderError(node.leadership.leader_id, node.leadership.epoch)
        return node

    async def add_voter(self, voter: VoterEndpoint) -> None:
        """See ``MetadataLog``."""
        node = self._begin_change()
        try:
            configuration = node.configuration
            if voter.voter_id in configuration.voters:
                raise MembershipChangeError(f"node {voter.voter_id} is a voter already")
            problem = voter.problem()
            if problem is not None:
                raise MembershipChangeError(problem)
            if configuration.learners.get(voter.voter_id) != voter:
                await self._change(node, lambda current: current.with_learner(voter))
            with trio.move_on_after(FIRST_ANSWER_MS / 1000):
                await self._progressed.wait_until(lambda: node.member_match(voter.voter_id) is not None)
            if node.member_match(voter.voter_id) is None:
                await self._change(node, lambda current: current.without(voter.voter_id))
                raise MembershipTimeoutError(
                    f"no controller with the id {voter.voter_id} has answered at "
                    f"{join_address(voter.host, voter.port)} within "
                    f"{FIRST_ANSWER_MS / 1000:g} s, so it was not added: start it first, and give the address of its "
                    "controller listener"
                )
            with trio.move_on_after(CATCH_UP_TIMEOUT_MS / 1000):
                await self._progressed.wait_until(lambda: self._caught_up(node, voter.voter_id))
            if not self._caught_up(node, voter.voter_id):
                await self._change(node, lambda current: current.without(voter.voter_id))
                raise MembershipTimeoutError(
                    f"node {voter.voter_id} at {join_address(voter.host, voter.port)} did not catch up within "
                    f"{CATCH_UP_TIMEOUT_MS} ms, and was not added"
                )
            await self._change(node, lambda current: current.with_voter(voter.voter_id))
        finally:
            self._changing = False

    async def remove_voter(self, voter_id: int, directory_id: uuid.UUID = ZERO_UUID) -> None:
        """See ``MetadataLog``."""
        node = self._begin_change()
        try:
            configuration = node.configuration
            member = configuration.member(voter_id)
            if member is None or (
                ZERO_UUID not in (directory_id, member.directory_id) and member.directory_id != directory_id
            ):
                raise MembershipChangeError(f"node {voter_id} with directory {directory_id} is no voter")
            if voter_id in configuration.voters and len(configuration.voters) == 1:
                raise MembershipChangeError(f"node {voter_id} is the last voter")
            await self._change(node, lambda current: current.without(voter_id))
        finally:
            self._changing = False

    async def update_voter(self, voter: VoterEndpoint) -> None:
        """See ``MetadataLog``."""
        node = self._begin_change()
        try:
            configuration = node.configuration
            known = configuration.voters.get(voter.voter_id)
            if known is None or known.directory_id not in (ZERO_UUID, voter.directory_id):
                raise MembershipChangeError(f"node {voter.voter_id} with directory {voter.directory_id} is no voter")
            if (known.host, known.port) != (voter.host, voter.port):
                if voter.voter_id != self._config.node_id and self._answers(node, voter.voter_id):
                    raise MembershipChangeError(
                        f"node {voter.voter_id} is reached at {join_address(known.host, known.port)}"
                    )
                await self._change(node, lambda current: current.with_address(voter.voter_id, voter.host, voter.port))
        finally:
            self._changing = False

    def _answers(self, node: EngineNode, voter_id: int) -> bool:
        """Returns whether a voter has answered recently from the address that the membership has."""
        clock = self._environment.clock
        wall_ms = clock.wall_ms()
        lately_ms = wall_ms - self._config.timing.election_timeout_ms_max
        rows = node.status(clock.monotonic_ms(), wall_ms).replicas
        return any(row.voter.voter_id == voter_id and row.last_fetch_timestamp_ms >= lately_ms for row in rows)

    def _begin_change(self) -> EngineNode:
        node = self._active_node()
        if self._changing:
            raise MembershipBusyError("another change of the voters is under way")
        self._changing = True
        return node

    def _abandoned(self) -> dict[int, VoterEndpoint]:
        """Returns the learners that no request is adding."""
        node = self._node_or_none()
        if node is None or not node.leadership.active or self._changing:
            return {}
        return dict(node.configuration.learners)

    async def drop_abandoned(self) -> None:
        """Drops learners that no request is adding any more; runs until cancelled."""
        while True:
            await self._progressed.wait_until(lambda: bool(self._abandoned()))
            before = self._abandoned()
            await trio.sleep(ABANDONED_MS / 1000)
            after = self._abandoned()
            for learner_id in sorted(key for key, learner in after.items() if before.get(key) == learner):
                try:
                    await self.remove_voter(learner_id)
                except (MembershipChangeError, NotLeaderError, OutcomeUnknownError) as error:
                    self._log.debug("learner-not-dropped", learner=learner_id, error=error)
                    break
                self._log.info("abandoned-learner-dropped", learner=learner_id)

    async def _change(self, node: EngineNode, changed: Callable[[Configuration], Configuration]) -> None:
        """Appends the changed membership and returns when it is committed.

        Waits for a change in progress: the leader itself appends one when it learns a voter's directory id.

        Raises:
            MembershipBusyError: the other change, or a hand-over of the leadership, did not end in time.
        """
        deadline = trio.current_time() + 2 * self._config.timing.election_timeout_ms_max / 1000
        while True:
            configuration = changed(node.configuration)
            try:
                change = RaftProposal(partial(_begin, node, configuration))
                break
            except LogBusyError as error:
                if trio.current_time() >= deadline:
                    raise MembershipBusyError(str(error)) from error
            with trio.move_on_at(deadline):
                await self._progressed.wait()
        self._kick()
        await change.wait_committed()

    def _caught_up(self, node: EngineNode, member: int) -> bool:
        """Returns whether a learner holds all that is committed."""
        match_index = node.member_match(member)
        return match_index is not None and match_index >= node.applied_index

    def _best_successor(self, node: EngineNode, voters: Sequence[int]) -> int:
        """Returns the voter that holds most of the log, of those that have answered recently if any has.

        In an idle log a dead voter holds as much as the others.
        """
        clock = self._environment.clock
        wall_ms = clock.wall_ms()
        lately_ms = wall_ms - self._config.timing.election_timeout_ms_min
        heard_ms = {
            row.voter.voter_id: row.last_fetch_timestamp_ms
            for row in node.status(clock.monotonic_ms(), wall_ms).replicas
        }
        return max(voters, key=lambda voter: (heard_ms[voter] >= lately_ms, node.member_match(voter) or 0))

    async def transfer_leadership(self, target_id: int | None = None) -> None:
        """See ``MetadataLog``."""
        node = self._active_node()
        own_id = self._config.node_id
        epoch = node.epoch
        voters = [voter for voter in sorted(node.configuration.voters) if voter != own_id]
        if target_id is None and voters:
            target_id = self._best_successor(node, voters)
        if target_id == own_id:
            return
        if not voters:
            raise MembershipChangeError(f"node {own_id} is the only voter, so no other node can lead")
        if target_id is None or target_id not in voters:
            raise MembershipChangeError(f"node {target_id} is no voter, so it cannot lead")
        node.transfer(target_id)
        self._kick()
        with trio.move_on_after(2 * self._config.timing.election_timeout_ms_max / 1000):
            await self._progressed.wait_until(lambda: node.leadership.epoch > epoch and node.leadership.leader_id >= 0)
        if node.leadership.epoch == epoch or node.leadership.leader_id != target_id:
            raise MembershipChangeError(f"node {target_id} did not take the leadership over in time")


def _begin(node: EngineNode, configuration: Configuration, notify: Callable[[], None]) -> Pending:
    return node.change_configuration(configuration, notify=notify)
