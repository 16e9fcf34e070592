"""Carries out a plan of moves in bounded batches, with progress; an interrupted one goes on with the next call."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from moldau.protocol.errors import KafkaError
from moldau_cli import output
from moldau_cli.client.running import with_admin
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.operations.partial import describe_present
from moldau_cli.operations.survey import current_replicas, running_moves, sizes_of
from moldau_cli.operations.throttling import lift_throttle, throttle_moves
from moldau_cli.plans.balance.execution import next_step
from moldau_cli.plans.throttle import states
from moldau_cli.progress import progress
from moldau_cli.words import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from moldau import Admin
    from moldau_cli.plans.balance.execution import RunningMove, Step
    from moldau_cli.plans.balance.state import Partition

R = TypeVar("R")

GO_ON: Final = "moves in progress go on, with their throttle; the same command continues with the others"
POLL_S: Final = 0.5
KNOWN_POLL_S: Final = 0.05
KNOWN_POLLS_MAX: Final = 60
REQUEST_PARTITIONS_MAX: Final = 500
"""Partitions whose moves start with one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOptions:
    """How a plan is carried out."""

    throttle: int | None
    """Bytes per second that each broker may send and receive for the moves; None: no limit is set."""
    at_once_max: int
    """Replicas that are copied to one broker, and away from one, at a time."""
    stall_s: float
    """How long nothing may be copied before the command gives up."""
    elects: bool
    """Whether the preferred replicas get leadership at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The result of a plan that is done."""

    moved: int
    """Partitions that this call changed."""
    already: int
    """Partitions that had the replicas of the plan before."""
    gone: int
    """Partitions that do not exist: their topic was deleted, or recreated with fewer of them."""


def run_moves(bootstrap: str | None, work: Callable[[Admin], Awaitable[R]]) -> R:
    """Runs ``work``, which moves replicas, with an admin client; says what goes on if the user interrupts it."""
    try:
        return with_admin(bootstrap, work)
    except KeyboardInterrupt:
        output.note(GO_ON)
        raise


async def carry_out_moves(admin: Admin, plan: Mapping[Partition, Sequence[int]], options: MoveOptions) -> Moved:
    """Moves all partitions of a plan; on return no move of it is left, and its throttle is lifted.

    If it is cancelled or fails, the moves in progress go on, with their throttle.

    Raises:
        UsageError: the plan names a broker that is not registered.
        CommandError: nothing was copied for ``stall_s``.
        KafkaError: a request was refused.
    """
    cluster = await admin.describe_cluster(include_fenced=True)
    registered = [one.node_id for one in cluster.brokers]
    unknown = sorted({node for replicas in plan.values() for node in replicas} - set(registered))
    if unknown:
        raise UsageError(f"no broker {unknown[0]}; registered brokers are {','.join(map(str, registered))}")
    live = [node for node in registered if node not in cluster.fenced]
    sizes = _largest(await _sizes(admin, live))
    try:
        return await _moved(admin, plan, options, sizes)
    except KafkaError:
        output.note(GO_ON)
        raise


async def _moved(
    admin: Admin, plan: Mapping[Partition, Sequence[int]], options: MoveOptions, sizes: Mapping[Partition, int]
) -> Moved:
    import trio

    first, watch = None, _StallWatch(options.stall_s)
    limited: set[Partition] = set()
    with progress("partitions", len(plan)) as shown:
        while True:
            moving = await running_moves(admin)
            current = await current_replicas(admin, (topic for topic, _ in plan))
            step = next_step(plan, current, moving, sizes, at_once_max=options.at_once_max)
            # Those that move elsewhere when the command begins get their limit when they start.
            copying = (*step.waiting, *step.running) if first is None else step.start
            first = first or step
            await _throttle(admin, plan, [where for where in copying if where not in limited], options.throttle)
            limited.update(copying)
            shown.update(len(step.done) + len(step.gone))
            if step.is_over:
                break
            for begin in range(0, len(step.start), REQUEST_PARTITIONS_MAX):
                starting = step.start[begin : begin + REQUEST_PARTITIONS_MAX]
                await _start(admin, {where: list(plan[where]) for where in starting})
            watch.look(trio.current_time(), step, await _copied(admin, moving))
            await trio.sleep(POLL_S)
    existing = [where for where in plan if where in current]
    await lift_throttle(admin, existing, any_moves=bool(moving))
    if options.elects:
        await elect_preferred(admin, existing)
    return Moved(moved=len(step.done) - len(first.done), already=len(first.done), gone=len(step.gone))


async def verify_moves(admin: Admin, plan: Mapping[Partition, Sequence[int]]) -> dict[Partition, str]:
    """Returns the state of each move of a plan, and lifts the throttles that they no longer need.

    Raises:
        KafkaError: a request was refused.
    """
    moving = await running_moves(admin)
    current = await current_replicas(admin, (topic for topic, _ in plan))
    await lift_throttle(
        admin, [where for where in plan if where in current and where not in moving], any_moves=bool(moving)
    )
    return states(current, plan, moving)


async def elect_preferred(admin: Admin, partitions: Iterable[Partition]) -> int:
    """Gives leadership to the preferred replicas; returns how many leaders changed.

    Replicas that are not in sync yet do not become leaders; this is not an error.

    Raises:
        KafkaError: the request was refused as a whole.
    """
    from moldau.admin import AdminError
    from moldau.protocol.errors import ErrorCode

    wanted = sorted(partitions)
    changed = 0
    for begin in range(0, len(wanted), REQUEST_PARTITIONS_MAX):
        try:
            changed += len(await admin.elect_leaders(wanted[begin : begin + REQUEST_PARTITIONS_MAX]))
        except AdminError as error:
            bearable = {ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            if not all(failure.code in bearable for failure in error.failures.values()):
                raise
            changed += len(error.results) if isinstance(error.results, list) else 0
            output.note(f"not elected: {', '.join(sorted(error.failures))}")
    return changed


async def count_leaders(
    admin: Admin, topics: Iterable[str], strayed: Iterable[Partition], elected: int
) -> dict[int, int]:
    """Returns how many partitions each broker leads once the brokers know ``elected`` new leaders of ``strayed``.

    The controller answers an election before the brokers know it. After some seconds the last answer counts: a topic
    may be deleted meanwhile, or a leader lose its place again.
    """
    import trio

    names, places = list(topics), set(strayed)
    for attempt in range(KNOWN_POLLS_MAX):
        if attempt:
            await trio.sleep(KNOWN_POLL_S)
        described = await describe_present(admin, names)
        parts = [(name, part) for name, topic in described.items() for part in topic.partitions]
        back = sum((name, part.partition) in places and part.leader == part.replicas[0] for name, part in parts)
        if back >= elected:
            break
    return Counter(part.leader for _, part in parts)


async def _start(admin: Admin, targets: dict[Partition, list[int]]) -> None:
    """Starts moves; a topic that was deleted meanwhile is no error."""
    from moldau.admin import AdminError
    from moldau.protocol.errors import ErrorCode

    try:
        await admin.alter_partition_reassignments(targets)
    except AdminError as error:
        if any(one.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for one in error.failures.values()):
            raise


async def _throttle(
    admin: Admin, plan: Mapping[Partition, Sequence[int]], partitions: Sequence[Partition], rate: int | None
) -> None:
    """Limits the copies of partitions; those of a plan that goes on get the new limit too."""
    if rate is not None and partitions:
        targets = {where: list(plan[where]) for where in partitions}
        await throttle_moves(admin, targets, rate, may_be_gone=True)


async def _copied(admin: Admin, moving: Mapping[Partition, RunningMove]) -> int:
    """Returns the bytes that the new replicas of all moves have."""
    receivers = sorted({node for move in moving.values() for node in move.adding})
    live = {one.node_id for one in (await admin.describe_cluster()).brokers}
    sizes = await _sizes(admin, [node for node in receivers if node in live])
    return sum(sizes.get((*where, node), 0) for where, move in moving.items() for node in move.adding)


async def _sizes(admin: Admin, brokers: Iterable[int]) -> dict[tuple[str, int, int], int]:
    """Returns the bytes of the replicas on brokers; one that has just died does not end the moves of the others."""
    found: dict[tuple[str, int, int], int] = {}
    for node in brokers:
        with suppress(KafkaError):
            found.update(sizes_of(await admin.describe_log_dirs([node])))
    return found


def _largest(sizes: Mapping[tuple[str, int, int], int]) -> dict[Partition, int]:
    found: dict[Partition, int] = {}
    for (topic, number, _), size in sizes.items():
        found[topic, number] = max(found.get((topic, number), 0), size)
    return found


class _StallWatch:
    """Notices that nothing happens any more."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._seen: object = None
        self._since_s = 0.0

    def look(self, now_s: float, step: Step, copied_bytes: int) -> None:
        """Compares the state with the last one.

        Raises:
            CommandError: nothing has changed for too long.
        """
        seen = (step, copied_bytes)
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        elif now_s - self._since_s >= self._stall_s:
            waits = [f"{topic}-{number}" for topic, number in (*step.running, *step.elsewhere, *step.waiting)]
            raise CommandError(
                f"nothing was copied for {self._stall_s:g} s; {counted(len(waits), 'partition')} not done, "
                f"first {waits[0]}: "
                "moldau cluster status -b shows what is wrong, and the same command goes on afterwards"
            )
