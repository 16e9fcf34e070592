"""Decides on the requests of members of streams groups: joins, heartbeats and leaves. Pure (KIP-1071).

A heartbeat creates or updates the member, and with the first member the topology. If the member, the topics of the
topology or the assignor's settings have changed, the group epoch is raised; then the assignor computes a new target,
and the member takes its next step towards it. Tasks are assigned only while all topics exist as the topology needs
them; otherwise the answer says what is wrong. All checks come before the first change, so a refused request changes
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.streams_group_heartbeat import Status as StatusEntry
from moldau.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatResponse, TaskIds
from moldau_broker.coordinator.group.consumer.core.catalogue import group_setting, metadata_hash
from moldau_broker.coordinator.group.core.assignment_pace import heartbeat_after_ms, target_wait_ms
from moldau_broker.coordinator.group.core.member_checks import check_instance, leaving_member
from moldau_broker.coordinator.group.streams.core.assignor import Worker, sticky_assignor
from moldau_broker.coordinator.group.streams.core.internal_topics import Configured, Status, configure
from moldau_broker.coordinator.group.streams.core.reconcile import reconcile
from moldau_broker.coordinator.group.streams.core.request_checks import check_request
from moldau_broker.coordinator.group.streams.core.state import (
    EMPTY_TASKS,
    FIRST_EPOCH,
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    STANDBY_REPLICAS,
    Endpoint,
    MemberState,
    StreamsCurrent,
    StreamsEpoch,
    StreamsMember,
    StreamsMetadata,
    StreamsTarget,
    StreamsTargetEpoch,
    StreamsTopology,
    TaskSets,
    removal_of,
)
from moldau_broker.coordinator.group.streams.core.topology import by_subtopology, tasks_of, topology_of
from moldau_broker.coordinator.group.streams.core.views import endpoint_partitions

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
    from moldau_broker.coordinator.group.consumer.core.catalogue import Catalogue
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.streams.core.state import StreamsDraft, StreamsGroup
    from moldau_broker.coordinator.group.streams.core.topology import Tasks, Topology
    from moldau_broker.coordinator.runtime.effects import Moment, RequestContext

HEARTBEAT_INTERVAL, SESSION_TIMEOUT = "streams.heartbeat.interval.ms", "streams.session.timeout.ms"
INITIAL_DELAY, STANDBYS = "streams.initial.rebalance.delay.ms", "streams.num.standby.replicas"
TASK_OFFSET_INTERVAL, ASSIGNMENT_INTERVAL = "streams.task.offset.interval.ms", "streams.assignment.interval.ms"
"""Keys of the dynamic configuration of a group."""
_FAILURES_MAX = 3
"""Topics whose failed creation an answer names."""
_DELAYED_EPOCH = 1
"""The epoch of members that wait for a group's first assignment."""


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """A coordinator's state of a group beyond the log. It is lost with the leadership, and found again."""

    configured: Configured | None = None
    """The topology ``configured_for`` on the topics of ``configured_version``."""
    configured_for: Topology | None = None
    configured_version: int = -1
    topics_hash: int = 0
    """The hash of those topics."""
    creation_errors: tuple[tuple[str, str], ...] = ()
    """Internal topics that could not be created, with the names of the errors."""
    shutdown_by: str | None = None
    """The member that asked all members to stop."""
    endpoint_epoch: int = 0
    """Rises with each change of what the processes with an endpoint run."""


class StreamsDecisions:
    """The decisions for all streams groups of one coordinator."""

    def __init__(self, config: GroupConfig, catalogue: Catalogue) -> None:
        """Decides by these limits and topics."""
        self._config = config
        self._catalogue = catalogue

    # Settings

    def session_timeout_ms(self, group_id: str) -> int:
        """Returns the session timeout of a group."""
        return self._setting(group_id, SESSION_TIMEOUT, self._config.streams_session_timeout_ms)

    def initial_delay_ms(self, group_id: str) -> int:
        """Returns how long a group waits for further members before its first assignment."""
        return self._setting(group_id, INITIAL_DELAY, self._config.streams_initial_delay_ms)

    def _setting(self, group_id: str, key: str, default: int) -> int:
        return group_setting(self._catalogue, group_id, key, default)

    def _assignor_configs(self, group_id: str) -> tuple[tuple[str, str], ...]:
        replicas = self._setting(group_id, STANDBYS, self._config.streams_standby_replicas)
        return ((STANDBY_REPLICAS, str(replicas)),)

    # Requests

    def check(self, request: StreamsGroupHeartbeatRequest) -> None:
        """Checks what a request says on its own.

        Raises:
            KafkaError: INVALID_REQUEST or STREAMS_INVALID_TOPOLOGY.
        """
        check_request(request)

    def heartbeat(
        self,
        draft: StreamsDraft,
        around: Surroundings,
        request: StreamsGroupHeartbeatRequest,
        context: RequestContext,
        moment: Moment,
        *,
        is_delayed: Callable[[], bool],
        has_room: Callable[[StreamsMember, Topology | None], ErrorCode],
    ) -> StreamsGroupHeartbeatResponse:
        """Handles a request that `check` has accepted, and returns its answer.

        Args:
            draft: the group; it takes the changes.
            around: what is known of the group beyond the log; it changes too.
            request: the request.
            context: its sender.
            moment: now.
            is_delayed: whether the group waits for further members; asked after a first member has joined.
            has_room: the code with which the memory limits refuse a new or changed member, or a new topology.

        Raises:
            KafkaError: the request is refused, and the draft is unchanged.
        """
        if request.member_epoch < JOIN_EPOCH:
            return self._leave(draft, around, request)
        joins = request.member_epoch == JOIN_EPOCH
        reported = _reported(request)
        before, replaced = self._find(draft.group, request, reported)
        topology, is_new_topology = _topology(draft.group, request)
        configured = self._configured(around, topology)
        if configured.is_ready and reported is not None:
            _check_tasks(reported, configured, before)
        after = _updated(before, request, context)
        is_changed = after != before or before.member_id not in draft.group.members
        if is_changed or is_new_topology:
            code = has_room(after, topology if is_new_topology else None)
            if code is not ErrorCode.NONE:
                raise KafkaError(code, "The members of groups take all the memory that they may.")
        group_id, member_id = draft.group.group_id, after.member_id
        bumps = _describe(draft, before, after, replaced)
        if is_new_topology:
            draft.add(StreamsTopology(group_id=group_id, topology=topology))
        self._raise_epoch_if_needed(draft, around.topics_hash, configured, bumps=bumps)
        delayed = draft.group.epoch > draft.group.assignment_epoch and is_delayed()
        wait_ms = self._assign_if_due(draft, configured, moment, delayed=delayed)
        moved = self._step(draft, member_id, reported, delayed=delayed, joins=joins)
        # The answer which gave the tasks, or took them away, may have been lost. The member may not know them if its
        # report differs, or if the epoch is new to it: it could begin tasks that count as given back.
        knows = request.member_epoch == moved.epoch and (reported is None or reported == moved.assigned)
        is_moved = joins or moved.assigned != before.assigned
        if request.shutdown_application and around.shutdown_by is None:
            around.shutdown_by = member_id
        answer = StreamsGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=moved.epoch,
            heartbeat_interval_ms=heartbeat_after_ms(
                self._setting(group_id, HEARTBEAT_INTERVAL, self._config.streams_heartbeat_interval_ms), wait_ms
            ),
            task_offset_interval_ms=self._setting(
                group_id, TASK_OFFSET_INTERVAL, self._config.streams_task_offset_interval_ms
            ),
            status=_statuses(moved, topology, configured, around, delayed=delayed, waits=wait_ms > 0),
        )
        if is_moved or not knows:
            answer.active_tasks, answer.standby_tasks, answer.warmup_tasks = map(_task_ids, moved.assigned.kinds)
        if is_moved and (moved.endpoint or before.endpoint) is not None:
            around.endpoint_epoch += 1
        if around.endpoint_epoch != request.endpoint_information_epoch:
            answer.partitions_by_user_endpoint = endpoint_partitions(draft.group, configured, self._catalogue)
        answer.endpoint_information_epoch = around.endpoint_epoch
        return answer

    def _configured(self, around: Surroundings, topology: Topology) -> Configured:
        """Returns the topology on the present topics; computes it again only after topics have changed."""
        version = self._catalogue.version()
        if around.configured is None or around.configured_version != version or around.configured_for != topology:
            around.configured = configure(topology, self._catalogue)
            around.configured_for, around.configured_version = topology, version
            around.topics_hash = metadata_hash(topology.required_topics(), self._catalogue)
        return around.configured

    # Members

    def _find(
        self, group: StreamsGroup, request: StreamsGroupHeartbeatRequest, reported: TaskSets | None
    ) -> tuple[StreamsMember, StreamsMember | None]:
        """Returns the member of the sender, and the static member that it replaces."""
        member_id, epoch = request.member_id, request.member_epoch
        joins = epoch == JOIN_EPOCH
        if not joins and not group.exists:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {group.group_id} not found.")
        if request.instance_id is not None:
            holder = group.static_member(request.instance_id)
            if holder is not None and joins and holder.epoch == LEAVE_STATIC_EPOCH:
                return replace(holder, member_id=member_id, epoch=0, previous_epoch=0), holder
            holder_id = None if holder is None else holder.member_id
            check_instance(request.instance_id, holder_id, member_id, joins=joins)
        found = group.members.get(member_id)
        if found is None:
            if not joins:
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}."
                )
            size = self._config.streams_size_max
            if len(group.members) >= size:
                raise KafkaError(
                    ErrorCode.GROUP_MAX_SIZE_REACHED,
                    f"The streams group has reached its maximum capacity of {size} members.",
                )
            return StreamsMember(member_id=member_id), None
        if not joins:
            check_epoch(found, epoch, reported)
        return found, None

    def _leave(
        self, draft: StreamsDraft, around: Surroundings, request: StreamsGroupHeartbeatRequest
    ) -> StreamsGroupHeartbeatResponse:
        group = draft.group
        if not group.exists:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {group.group_id} not found.")
        member = leaving_member(group, request.member_id, request.instance_id)
        if request.instance_id is not None and request.member_epoch == LEAVE_STATIC_EPOCH:
            draft.add(StreamsCurrent(group_id=group.group_id, member_id=member.member_id, member=_away(member)))
        else:
            self.fence(draft, around, request.member_id)
        if draft.group.members and request.shutdown_application and around.shutdown_by is None:
            around.shutdown_by = request.member_id
        return StreamsGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch, status=[])

    def fence(self, draft: StreamsDraft, around: Surroundings, member_id: str) -> None:
        """Removes a member; the next heartbeat of another member assigns its tasks."""
        if draft.group.members[member_id].endpoint is not None:
            around.endpoint_epoch += 1
        draft.add_all(removal_of(draft.group.group_id, member_id))
        group = draft.group
        if not group.members:
            around.shutdown_by = None
        draft.add(
            StreamsEpoch(
                group_id=group.group_id,
                epoch=group.epoch + 1,
                metadata_hash=group.metadata_hash,
                validated_epoch=group.validated_epoch,
                configs=group.configs,
            )
        )

    def _step(
        self, draft: StreamsDraft, member_id: str, reported: TaskSets | None, *, delayed: bool, joins: bool
    ) -> StreamsMember:
        """Moves a member towards its target; while the first assignment is delayed, towards no task."""
        group = draft.group
        present = group.members[member_id]
        target, target_epoch = group.targets.get(member_id, EMPTY_TASKS), group.assignment_epoch
        if delayed:
            target, target_epoch = EMPTY_TASKS, max(_DELAYED_EPOCH, group.assignment_epoch)
        moved = reconcile(
            present,
            target_epoch,
            target,
            lambda kind, task: group.is_free(kind, task, present),
            reported,
            joins=joins,
        )
        if moved != present:
            draft.add(StreamsCurrent(group_id=group.group_id, member_id=member_id, member=moved))
        return moved

    # Epochs

    def _raise_epoch_if_needed(self, draft: StreamsDraft, hashed: int, configured: Configured, *, bumps: bool) -> None:
        group = draft.group
        validated = configured.epoch if configured.is_ready else -1
        configs = self._assignor_configs(group.group_id)
        if not bumps and (hashed, validated, configs) == (group.metadata_hash, group.validated_epoch, group.configs):
            return
        draft.add(
            StreamsEpoch(
                group_id=group.group_id,
                epoch=group.epoch + 1 if group.epoch else FIRST_EPOCH,
                metadata_hash=hashed,
                validated_epoch=validated,
                configs=configs,
            )
        )

    def _assign_if_due(self, draft: StreamsDraft, configured: Configured, moment: Moment, *, delayed: bool) -> int:
        """Computes the target of the group epoch if it can be computed now; returns how long the group still waits."""
        wait_ms = self._wait_ms(draft.group, moment)
        if draft.group.epoch > draft.group.assignment_epoch and not delayed and wait_ms == 0:
            self.assign(draft, configured, moment)
        return wait_ms

    def _wait_ms(self, group: StreamsGroup, moment: Moment) -> int:
        """Returns how long a group still waits for a new target assignment; see ``target_wait_ms``."""
        interval_ms = self._setting(group.group_id, ASSIGNMENT_INTERVAL, self._config.streams_assignment_interval_ms)
        is_assigned = any(not tasks.is_empty for tasks in group.targets.values())
        return target_wait_ms(group, interval_ms, moment.wall_ms, is_assigned=is_assigned)

    def assign(self, draft: StreamsDraft, configured: Configured, moment: Moment) -> None:
        """Computes the target assignment of the group epoch, and writes what differs from the last one.

        No member gets tasks while topics are missing or wrong.
        """
        group = draft.group
        workers = [
            Worker(
                member_id=member.member_id,
                process_id=member.process_id,
                previous=group.targets.get(member.member_id, EMPTY_TASKS),
            )
            for member in group.members.values()
        ]
        parts = configured.subtopologies.values() if configured.is_ready else ()
        targets = sticky_assignor(workers, parts, int(dict(group.configs).get(STANDBY_REPLICAS, "0")))
        for member_id, tasks in targets.items():
            if tasks != group.targets.get(member_id):
                draft.add(StreamsTarget(group_id=group.group_id, member_id=member_id, tasks=tasks))
        draft.add(StreamsTargetEpoch(group_id=group.group_id, epoch=group.epoch, assigned_ms=moment.wall_ms))

    def assign_after_delay(self, draft: StreamsDraft, around: Surroundings, moment: Moment) -> None:
        """Computes the first assignment of a group whose delay is over; members get it with their next heartbeats."""
        group = draft.group
        if not group.members or group.topology is None or group.epoch <= group.assignment_epoch:
            return
        try:
            configured = self._configured(around, group.topology)
        except KafkaError:
            return  # with the topics created meanwhile the topology is invalid: members hear of it when they ask
        self.assign(draft, configured, moment)


def _describe(draft: StreamsDraft, before: StreamsMember, after: StreamsMember, replaced: StreamsMember | None) -> bool:
    """Writes what a member says of itself; returns whether it may need other tasks now."""
    if replaced is not None:
        _replace(draft, replaced, after)
        return _works_differently(before, after)
    if after == before and before.member_id in draft.group.members:
        return False
    draft.add(StreamsMetadata(group_id=draft.group.group_id, member_id=after.member_id, member=after))
    return True


def _replace(draft: StreamsDraft, old: StreamsMember, new: StreamsMember) -> None:
    """Gives the tasks of a static member that was away to its new member id."""
    group_id, target = draft.group.group_id, draft.group.targets.get(old.member_id, EMPTY_TASKS)
    draft.add_all(removal_of(group_id, old.member_id))
    draft.add(StreamsMetadata(group_id=group_id, member_id=new.member_id, member=new))
    draft.add(StreamsTarget(group_id=group_id, member_id=new.member_id, tasks=target))
    draft.add(StreamsCurrent(group_id=group_id, member_id=new.member_id, member=new))


def _works_differently(before: StreamsMember, after: StreamsMember) -> bool:
    """Returns whether a static member that comes back may need other tasks than it had."""
    return (before.topology_epoch, before.rack_id, before.tags, before.process_id) != (
        after.topology_epoch,
        after.rack_id,
        after.tags,
        after.process_id,
    )


def _away(member: StreamsMember) -> StreamsMember:
    """Returns a static member that has left for a short time: it keeps its tasks, and has closed all of them."""
    return replace(
        member,
        epoch=LEAVE_STATIC_EPOCH,
        previous_epoch=member.epoch,
        state=MemberState.UNRELEASED_TASKS if member.state is MemberState.UNREVOKED_TASKS else member.state,
        revoking=EMPTY_TASKS,
        since={task: epoch for task, epoch in member.since.items() if task in member.assigned.active},
    )


def check_epoch(member: StreamsMember, epoch: int, reported: TaskSets | None) -> None:
    """Checks the epoch of a heartbeat.

    The former epoch is accepted too if the member has no more than its tasks: the answer with the present epoch may
    have been lost.

    Raises:
        KafkaError: FENCED_MEMBER_EPOCH.
    """
    if member.state is MemberState.UNKNOWN and (reported is None or not reported.is_empty):
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The streams group member is in an unknown state. The member must abandon all its tasks and rejoin.",
        )
    if epoch == member.epoch:
        return
    repeats = epoch == member.previous_epoch and reported is not None and member.assigned.contains(reported)
    if not repeats or epoch > member.epoch:
        size = "greater" if epoch > member.epoch else "smaller"
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The streams group member has a {size} member epoch ({epoch}) than the one known by the group "
            f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
        )


def _check_tasks(reported: TaskSets, configured: Configured, member: StreamsMember) -> None:
    """Refuses tasks that do not exist, unless the member has been given them: a topic may have lost partitions since.

    Raises:
        KafkaError: INVALID_REQUEST, with which clients end.
    """
    given = frozenset().union(*(member.owned(kind) for kind in (0, 1, 2)))
    for subtopology_id, partition in sorted((reported.active | reported.standby | reported.warmup) - given):
        part = configured.subtopologies.get(subtopology_id)
        if part is None:
            raise _invalid(f"Subtopology {subtopology_id} does not exist in the topology.")
        if not 0 <= partition < part.tasks:
            raise _invalid(
                f"Task {partition} for subtopology {subtopology_id} is invalid. "
                f"Number of tasks for this subtopology: {part.tasks}"
            )


def _topology(group: StreamsGroup, request: StreamsGroupHeartbeatRequest) -> tuple[Topology, bool]:
    """Returns the group's topology after a request, and whether the request brings it."""
    if request.topology is None:
        if group.topology is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "The group has no topology; the member must join again.")
        return group.topology, False
    offered = topology_of(request.topology)
    if group.topology is None:
        return offered, True
    if offered.epoch >= group.topology.epoch and offered != group.topology:
        raise _invalid("Topology updates are not supported yet.")
    return group.topology, False


def _reported(request: StreamsGroupHeartbeatRequest) -> TaskSets | None:
    if request.active_tasks is None or request.standby_tasks is None or request.warmup_tasks is None:
        return None
    return TaskSets(
        active=tasks_of(request.active_tasks),
        standby=tasks_of(request.standby_tasks),
        warmup=tasks_of(request.warmup_tasks),
    )


def _updated(member: StreamsMember, request: StreamsGroupHeartbeatRequest, context: RequestContext) -> StreamsMember:
    """Returns the member with what a request says of it; fields that the request leaves out stay."""
    endpoint, tags = request.user_endpoint, request.client_tags
    timeout = request.rebalance_timeout_ms
    known_endpoint = None if request.member_epoch == JOIN_EPOCH else member.endpoint  # of the process before
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=context.client_id,
        client_host=context.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout == -1 else timeout,
        topology_epoch=member.topology_epoch if request.topology is None else request.topology.epoch,
        process_id=member.process_id if request.process_id is None else request.process_id,
        endpoint=known_endpoint if endpoint is None else Endpoint(host=endpoint.host, port=endpoint.port),
        tags=member.tags if tags is None else tuple(sorted((tag.key, tag.value) for tag in tags)),
    )


def _statuses(
    member: StreamsMember,
    topology: Topology,
    configured: Configured,
    around: Surroundings,
    *,
    delayed: bool,
    waits: bool,
) -> list[StatusEntry]:
    found: list[tuple[Status, str]] = []
    if member.topology_epoch < topology.epoch:
        found.append(
            (
                Status.STALE_TOPOLOGY,
                f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch "
                f"{topology.epoch}.",
            )
        )
    if delayed:
        found.append((Status.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured initial rebalance delay."))
    elif waits:
        found.append((Status.ASSIGNMENT_DELAYED, "Assignment delayed due to the configured assignment interval."))
    if configured.status is not None:
        found.append((configured.status, configured.detail + _creation_failures(configured, around)))
    if around.shutdown_by is not None:
        found.append(
            (
                Status.SHUTDOWN_APPLICATION,
                f"Streams group member {around.shutdown_by} encountered a fatal error and requested a shutdown for "
                "the entire application.",
            )
        )
    return [StatusEntry(status_code=status, status_detail=detail) for status, detail in found]


def _creation_failures(configured: Configured, around: Surroundings) -> str:
    missing = {topic.name for topic in configured.missing}
    failures = [f"{name} ({error})" for name, error in around.creation_errors if name in missing]
    if not failures:
        return ""
    more = f" and {len(failures) - _FAILURES_MAX} more" if len(failures) > _FAILURES_MAX else ""
    return f"; Creation failed: {', '.join(failures[:_FAILURES_MAX])}{more}."


def _task_ids(tasks: Tasks) -> list[TaskIds]:
    return [
        TaskIds(subtopology_id=subtopology_id, partitions=numbers)
        for subtopology_id, numbers in by_subtopology(tasks).items()
    ]


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
