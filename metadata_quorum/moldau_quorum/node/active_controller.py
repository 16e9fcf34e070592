"""The active controller: one task that decides, one queue before it.

While this node leads the metadata log, requests queue up (``RequestQueue``) and ``ActiveController.run`` decides them
one after the other against the ``Projection``: the committed image with everything on top that this controller epoch
has decided before. A decision's records become one command, which is proposed at once and replayed on the projection;
its answer waits until the command is committed. So many decisions are under way at a time, and share the log's writes.

A deposed controller cannot do harm: a proposal names the epoch it was decided in, the log refuses it in any other, and
if a command did slip in, or one before it was lost, the sequence in its header makes every replica ignore it
(``records``). An answer whose command was refused or lost says NOT_CONTROLLER, and the sender tries again elsewhere.

Answers without records also wait until the changes that they rest on are committed, so that no answer shows an
uncommitted change. They wait for a read barrier too, because no commit shows that this node still led when it decided:
another controller may have changed the state meanwhile. Answers to heartbeats do not wait. There are many of them, and
what they say holds for one session.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.refusals import refusal
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger
from moldau_quorum.controller.cluster.brokers import fence
from moldau_quorum.controller.cluster.features import (
    SUPPORTED_FEATURES,
    initial_features,
    min_insync_records,
)
from moldau_quorum.controller.context import (
    MIN_INSYNC_REPLICAS,
    SLICE_RECORDS,
    Context,
    DecisionView,
    Result,
    Settings,
    min_insync_command,
)
from moldau_quorum.controller.dispatch import CHANGES, DecisionInputs
from moldau_quorum.controller.entities.tokens import remove_expired
from moldau_quorum.controller.walks import balance_leaders, elect_leaderless, with_last
from moldau_quorum.log.port import MetadataLog, NotLeaderError, OutcomeUnknownError
from moldau_quorum.metadata.image import RESOURCE_BROKER
from moldau_quorum.metadata.records import (
    ClusterRecord,
    CommandTooLargeError,
    ControllerChangeRecord,
    Endpoint,
    FeatureLevelRecord,
    MetadataCorruptError,
    MetadataRecord,
    RegisterControllerRecord,
)
from moldau_quorum.node.election_times import ElectionTimes
from moldau_quorum.node.live_brokers import LiveBrokers
from moldau_quorum.node.projection import Projection
from moldau_quorum.node.request_queue import ANSWER_TIMEOUT_MS, NotActiveError, PendingAnswer, RequestQueue
from moldau_quorum.node.voters.voter_features import ask_controller_features

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from moldau.protocol.messages.update_features import UpdateFeaturesRequest
    from moldau.protocol.schema import Request, Response
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.sasl.core.identity import Identity
    from moldau_quorum.log.port import Leadership
    from moldau_quorum.metadata.image import MetadataImage
    from moldau_quorum.node.state_machine import MetadataStateMachine
    from moldau_quorum.node.voters.voter_features import FeatureRanges
    from moldau_quorum.quotas.mutations import MutationAllowance

REBALANCE_LIMIT: Final = 1_000
"""Leaders that an automatic rebalance moves at a time."""
STALL_MS: Final = 100.0
"""When this task comes so much too late, it was the process that stood still, and sessions are extended."""
DECISIONS_PER_TURN: Final = 64
"""Decisions between two checkpoints."""
TURN_MS: Final = 20.0
"""Time of decisions after which there is a checkpoint before the next one: some requests take much longer than others,
and while this task decides, the node neither sends nor receives messages of the metadata log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveStatistics:
    """Counts since the start of the process."""

    active: bool
    decisions: int
    commands: int
    refused_busy: int
    queue_length: int
    brokers_fenced: int
    unclean_elections: int


class ActiveController:
    """Decides while this node leads. ``run`` must be running."""

    def __init__(
        self,
        environment: Environment,
        settings: Settings,
        log: MetadataLog,
        machine: MetadataStateMachine,
        *,
        node_id: int,
        incarnation_id: UUID,
        endpoints: Callable[[], tuple[Endpoint, ...]],
        cluster_id: str = "",
        features: Mapping[str, tuple[int, int]] = SUPPORTED_FEATURES,
        first_records: Sequence[MetadataRecord] = (),
    ) -> None:
        """Prepares a controller that is not active yet.

        ``cluster_id`` names a cluster without an id; an empty one is drawn. ``features`` are the levels that this node
        supports. ``first_records`` are further records of a new cluster (credentials).
        """
        self._first_records = tuple(first_records)
        self._features = features
        self._environment = environment
        self._settings = settings
        self._metadata_log = log
        self._node_id = node_id
        self._incarnation_id = incarnation_id
        self._endpoints = endpoints
        self._new_cluster_id = cluster_id
        self._log = EventLogger("moldau.controller", node=node_id)
        self._wanted: Leadership | None = None
        """Leadership that ``run`` has yet to act on."""
        self.elections = ElectionTimes(environment.clock)
        self._projection = Projection(environment.clock, log, machine, self.elections, self._log)
        self._queue = RequestQueue()
        self._work = Signal()
        self._woken = False
        self.live = LiveBrokers(environment, settings, self._log, wake=self._wake, image=lambda: self._projection.image)
        """The brokers that this controller hears while it is active."""
        self._sessions = self.live.sessions
        self._next_rebalance_ms = self._next_token_check_ms = float("inf")
        self._decisions = self._fenced = 0
        machine.on_leadership(self._leadership_changed)
        machine.on_image(self.elections.committed)

    @property
    def is_active(self) -> bool:
        """Whether this node decides."""
        return self._projection.epoch is not None

    def statistics(self) -> ActiveStatistics:
        """Counts."""
        return ActiveStatistics(
            active=self.is_active,
            decisions=self._decisions,
            commands=self._projection.commands,
            refused_busy=self._queue.refused,
            queue_length=len(self._queue),
            brokers_fenced=self._fenced,
            unclean_elections=self._projection.unclean_elections,
        )

    async def update_features(self, request: UpdateFeaturesRequest, connection: object | None) -> Response:
        """Asks the other voters which levels they support, then queues the request.

        A voter that has joined meanwhile counts as one that did not answer.

        Raises:
            NotActiveError: this controller is not active.
        """
        asked = self._metadata_log.voters
        ranges = await ask_controller_features(self._environment, asked, self._node_id)
        joined = [key for key, voter in sorted(self._metadata_log.voters.items()) if asked.get(key) != voter]
        ranges = {**ranges, **dict.fromkeys(joined), self._node_id: dict(self._features)}
        return await self.answer(self.submit(request, connection, ranges))

    def submit(
        self,
        request: Request,
        connection: object | None,
        controller_features: Mapping[int, FeatureRanges | None] | None = None,
        mutations: MutationAllowance | None = None,
        requester: Identity | None = None,
        *,
        is_forwarded: bool = False,
    ) -> PendingAnswer:
        """Queues a request; ``answer`` waits for its response.

        ``mutations`` is what the quota of the sender allows, ``requester`` is the client that sent the request.
        ``is_forwarded`` says that a broker forwarded it.

        Raises:
            NotActiveError: this controller is not active.
        """
        if self._projection.epoch is None:
            raise NotActiveError
        now_ms = self._environment.clock.monotonic_ms()
        pending = PendingAnswer(
            request=request,
            connection=connection,
            arrived_ms=now_ms,
            deadline_ms=now_ms + ANSWER_TIMEOUT_MS,
            controller_features={} if controller_features is None else controller_features,
            mutations=mutations,
            requester=requester,
            is_forwarded=is_forwarded,
        )
        self.live.request_arrived(request, connection, self._projection.image, now_ms)
        if self._queue.offer(pending):
            self._wake()
        return pending

    async def answer(self, pending: PendingAnswer) -> Response:
        """Waits until the decision is made and durable on a majority.

        Raises:
            NotActiveError: the request was not executed, because this controller is no longer active.
        """
        remaining_ms = max(0.0, pending.deadline_ms - self._environment.clock.monotonic_ms())
        with trio.move_on_after(remaining_ms / 1000):
            await pending.decided.wait()
            if pending.response is None:
                return pending.lost()
            try:
                if pending.proposal is not None:
                    await pending.proposal.wait_committed()
                if pending.unconfirmed_epoch is not None:
                    await self._metadata_log.read_barrier()
                    if self._projection.epoch != pending.unconfirmed_epoch:
                        return pending.lost()  # another controller epoch was confirmed
            except (NotLeaderError, OutcomeUnknownError):
                return pending.lost()
            return pending.response
        return refusal(
            pending.request, ErrorCode.REQUEST_TIMED_OUT, "the metadata quorum did not commit the change in time"
        )

    def connection_closed(self, connection: object) -> None:
        """Begins the grace period of the brokers whose session used a connection that has ended."""
        if self._projection.epoch is not None:
            self.live.connection_closed(connection, self._projection.image)
            self._wake()

    def _leadership_changed(self, leadership: Leadership) -> None:
        epoch = self._projection.epoch
        if epoch is not None and not (leadership.active and leadership.epoch == epoch):
            self._depose()
        self._wanted = leadership if leadership.active else None
        self._wake()

    def _wake(self) -> None:
        self._woken = True
        self._work.notify()

    # --- the deciding task

    async def run(self) -> None:
        """Decides until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.live.run)
            await self._decide_forever()

    async def _decide_forever(self) -> None:
        while True:
            self._woken = False
            if self._wanted is not None and self._projection.epoch != self._wanted.epoch:
                await self._begin_controller_epoch(self._wanted)
            if self._projection.epoch is not None:
                await self._decide_timed()
                await self._decide_queued()
            else:
                self._queue.drop_all()
            if self._woken:
                await trio.lowlevel.checkpoint()
            else:
                await self._wait_for_work()

    async def _wait_for_work(self) -> None:
        """Waits until something is queued or due."""
        due_ms = float("inf")
        if self._projection.epoch is not None:
            due_ms = min(
                self._sessions.next_deadline_ms() or float("inf"), self._next_rebalance_ms, self._next_token_check_ms
            )
        clock = self._environment.clock
        with trio.move_on_after(max(0.0, due_ms - clock.monotonic_ms()) / 1000):
            await self._work.wait_until(lambda: self._woken)
        late_ms = clock.monotonic_ms() - due_ms
        if late_ms > STALL_MS:
            # Stopped or starved, this process could not hear the heartbeats that came meanwhile.
            self._log.warning("stalled", late_ms=late_ms)
            self._sessions.extend(late_ms)

    async def _begin_controller_epoch(self, leadership: Leadership) -> None:
        self._projection.begin(leadership.epoch)
        image = self._projection.image
        now_ms = self._environment.clock.monotonic_ms()
        self.live.begin_controller_epoch(image, now_ms)
        if self._settings.auto_leader_rebalance_enable:
            self._next_rebalance_ms = now_ms + self._settings.leader_imbalance_check_interval_ms
        if self._settings.delegation_token_secret is not None:
            self._next_token_check_ms = now_ms + self._settings.delegation_token_expiry_check_interval_ms
        self._log.info("active", epoch=leadership.epoch, offset=image.offset)
        self._warn_of_other_minimum(image)
        records: list[MetadataRecord] = [
            ControllerChangeRecord(controller_id=self._node_id, epoch=leadership.epoch),
            *self._bootstrap_records(image),
        ]
        known = image.controllers.get(self._node_id)
        endpoints = self._endpoints()
        if known is None or known.incarnation_id != self._incarnation_id or known.endpoints != endpoints:
            records.append(
                RegisterControllerRecord(
                    controller_id=self._node_id, incarnation_id=self._incarnation_id, endpoints=endpoints
                )
            )
        await self._propose(records)
        if self._projection.epoch is not None:
            view = self._view()
            await self._propose_slices(with_last(elect_leaderless(view)), view)

    def _bootstrap_records(self, image: MetadataImage) -> list[MetadataRecord]:
        """Returns the first records of a new cluster."""
        if image.cluster_id:
            return []
        cluster_id = self._new_cluster_id or draw_cluster_id(self._draw_uuid())
        return [
            ClusterRecord(cluster_id=cluster_id),
            *[FeatureLevelRecord(name=name, level=level) for name, level in initial_features(self._features).items()],
            *min_insync_records(image, self._context()),
            *self._first_records,
        ]

    def _warn_of_other_minimum(self, image: MetadataImage) -> None:
        """Warns if the cluster uses another ``min.insync.replicas`` than this controller's file."""
        wanted = self._settings.min_insync_replicas
        held = image.config(RESOURCE_BROKER, "").get(MIN_INSYNC_REPLICAS, "that of each broker's file")
        if image.cluster_id and wanted is not None and held != str(wanted):
            self._log.warning(
                "min-insync-replicas-overridden", file=wanted, in_force=held, change=min_insync_command(wanted)
            )

    def _depose(self) -> None:
        self._log.info("deposed", epoch=self._projection.epoch)
        self._projection.end()
        self._wanted = None
        self._sessions.clear()
        self._next_rebalance_ms = self._next_token_check_ms = float("inf")
        self._queue.drop_all()

    def _draw_uuid(self) -> UUID:
        while True:
            drawn = UUID(int=self._environment.random.getrandbits(128), version=4)
            if drawn.int > 1:
                return drawn

    def _context(self) -> Context:
        now_ms = self._environment.clock.monotonic_ms()
        return Context(
            settings=self._settings,
            now_ms=now_ms,
            new_uuid=self._draw_uuid,
            draw_below=self._environment.random.randrange,
            wall_ms=self._environment.clock.wall_ms(),
        )

    def _view(self) -> DecisionView:
        return DecisionView(self._projection.image, self._context())

    async def _propose_slices(self, slices: Iterator[list[MetadataRecord]], view: DecisionView) -> None:
        """Writes a decision slice by slice. Other tasks run between slices, above all the metadata log's.

        This task decides nothing else before the last slice. Returns early when the controller epoch ends: the next
        active controller goes on.

        Raises:
            CommandTooLargeError: a slice exceeds the bound of one entry; nothing of it was written.
            MetadataCorruptError: a slice cannot be replayed; nothing of it was written.
        """
        clock = self._environment.clock
        began_ms, is_first = clock.monotonic_ms(), True
        for records in slices:
            spent_ms = clock.monotonic_ms() - began_ms
            if spent_ms > STALL_MS:
                self._sessions.extend(spent_ms)  # no heartbeat could be received meanwhile
            if not is_first:
                await trio.lowlevel.checkpoint()
                self._projection.records_in_turn = 0
            is_first = False
            await self._propose(records)
            if self._projection.epoch is None:
                return
            view.image = self._projection.image
            began_ms = clock.monotonic_ms()

    async def _propose(self, records: Sequence[MetadataRecord]) -> None:
        """Writes records as one command; ends the controller epoch if the log is led by another node now.

        Raises:
            CommandTooLargeError: the command exceeds the bound of one entry; nothing was written.
            MetadataCorruptError: the command cannot be replayed; nothing was written.
        """
        try:
            await self._projection.propose(records)
        except NotLeaderError:
            self._depose()

    async def _decide_queued(self) -> None:
        decided, clock = 0, self._environment.clock
        began_ms = clock.monotonic_ms()
        while self._queue and self._projection.epoch is not None:
            pending = self._queue.pop()
            await self._decide(pending)
            decided += 1
            if (
                decided % DECISIONS_PER_TURN == 0
                or self._projection.records_in_turn >= SLICE_RECORDS
                or clock.monotonic_ms() - began_ms >= TURN_MS
            ):
                self._projection.records_in_turn = 0
                await trio.lowlevel.checkpoint()
                await self._decide_timed()
                began_ms = clock.monotonic_ms()

    async def _decide(self, pending: PendingAnswer) -> None:
        """Decides one request."""
        self._decisions += 1
        request = pending.request
        context = self._context()
        if pending.controller_features:
            context = replace(context, controller_features=pending.controller_features)
        if pending.mutations is not None:
            context = replace(context, mutations=pending.mutations)
        if pending.requester is not None:
            context = replace(context, requester=pending.requester)
        if pending.is_forwarded:
            context = replace(context, is_forwarded=True)
        self.live.request_waited(
            request, pending.connection, self._projection.image, pending.arrived_ms, context.now_ms
        )
        before = self._projection.last_proposal
        response = await self._decide_and_propose(request, context)
        pending.wrote = self._projection.last_proposal is not before
        if self._projection.epoch is not None:
            pending.response = response
            pending.proposal = self._projection.last_proposal
            if not pending.wrote and not isinstance(request, BrokerHeartbeatRequest):
                pending.unconfirmed_epoch = self._projection.epoch
            self.live.request_decided(request, response, pending.connection, self._projection.image, context.now_ms)
        pending.decided.set()

    async def _decide_and_propose(self, request: Request, context: Context) -> Response:
        """Decides and writes; what cannot be decided or written is refused, and nothing has changed."""
        inputs = DecisionInputs(image=self._projection.image, context=context, sessions=self._sessions)
        view = DecisionView(self._projection.image, context)
        before = self._projection.last_proposal
        try:
            result: Result[Response] = CHANGES[request.__api_key__](request, inputs)
            await self._propose_slices(result.slices(view), view)
        except CommandTooLargeError as error:
            code, message = ErrorCode.POLICY_VIOLATION, f"{error}: split the request"
        except MetadataCorruptError as error:
            self._log.error("decision-not-replayable", exception=error, request=type(request).__name__)
            code, message = ErrorCode.UNKNOWN_SERVER_ERROR, "the controller's decision cannot be replayed: see its log"
        except AssertionError:
            raise  # a broken invariant: this node must not go on
        except Exception as error:  # noqa: BLE001 - decisions are pure, so a slice that fails has changed nothing
            self._log.error("decision-failed", exception=error, request=type(request).__name__)
            code, message = ErrorCode.UNKNOWN_SERVER_ERROR, "the controller could not decide: see its log"
        else:
            return result.response
        if self._projection.last_proposal is not before:
            message += "; a part of the request was carried out"
        return refusal(request, code, message)

    async def _decide_timed(self) -> None:
        """Fences brokers whose session is over, rebalances leaders, and removes expired tokens when it is time."""
        now_ms = self._environment.clock.monotonic_ms()
        expired = self._sessions.expired(now_ms)
        if expired:
            for broker_id in expired:
                self._sessions.remove(broker_id)
            view = self._view()
            brokers = view.image.brokers
            unfenced = [broker_id for broker_id in expired if broker_id in brokers and not brokers[broker_id].fenced]
            if unfenced:
                self._fenced += len(unfenced)
                self._log.warning("fencing", brokers=unfenced)
                await self._propose_slices(fence(view, dict.fromkeys(unfenced)), view)
        if now_ms >= self._next_rebalance_ms and self._projection.epoch is not None:
            self._next_rebalance_ms = now_ms + self._settings.leader_imbalance_check_interval_ms
            view = self._view()
            await self._propose_slices(with_last(balance_leaders(view, limit=REBALANCE_LIMIT)), view)
        if now_ms >= self._next_token_check_ms and self._projection.epoch is not None:
            self._next_token_check_ms = now_ms + self._settings.delegation_token_expiry_check_interval_ms
            view = self._view()
            await self._propose_slices(remove_expired(view.image, view.context.wall_ms), view)


def draw_cluster_id(drawn: UUID) -> str:
    """Draws a cluster id in Kafka's form: 22 characters of URL-safe base64."""
    import base64

    return base64.urlsafe_b64encode(drawn.bytes).decode("ascii").rstrip("=")
