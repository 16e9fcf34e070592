"""Moves all replicas away from one broker; an interrupted drain goes on with the next call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau_cli.errors import CommandError, UsageError
from moldau_cli.operations.moves import carry_out_moves
from moldau_cli.operations.survey import known_broker, survey
from moldau_cli.operations.throttling import lift_throttle, throttled_with
from moldau_cli.plans.balance.planner import plan_balance
from moldau_cli.plans.balance.state import ImpossiblePlanError, Options

if TYPE_CHECKING:
    from moldau import Admin
    from moldau_cli.operations.moves import MoveOptions
    from moldau_cli.operations.survey import Survey

PASSES_MAX: Final = 3
"""Surveys of one drain: topics that are created meanwhile may get replicas on the broker."""


async def drain_broker(admin: Admin, broker: int, options: MoveOptions, *, dry_run: bool = False) -> int:
    """Moves all replicas of a broker to others; returns how many partitions this call moved, or would move.

    Moves that an interrupted call began may have ended by themselves; their throttle is lifted too.

    Raises:
        UsageError: the broker is not registered, or the others cannot hold its replicas.
        CommandError: nothing was copied for long, or the broker gets replicas of new topics all the time.
        KafkaError: a request was refused.
    """
    moved = 0
    for _ in range(PASSES_MAX):
        seen = await survey(admin)
        known_broker(seen, broker)
        plan = _plan_of(seen, broker)
        if dry_run:
            return len(plan)
        if not plan:
            break
        moved += (await carry_out_moves(admin, plan, options)).moved
    left = (await survey(admin)).holders(broker)
    if left:
        raise CommandError(
            f"broker {broker} got replicas of new topics meanwhile: {len(left)}; "
            f"moldau logdirs cordon {broker} keeps them away: then drain it again"
        )
    if options.throttle is not None:
        limited = await throttled_with(admin, list(seen.topics), broker)
        ended = [where for where in limited if where not in seen.moving]
        await lift_throttle(admin, ended, any_moves=bool(seen.moving))
    return moved


def _plan_of(seen: Survey, broker: int) -> dict[tuple[str, int], list[int]]:
    """Returns the moves that empty a broker, those that run already among them.

    Raises:
        UsageError: the other brokers cannot hold all replicas.
    """
    options = Options(emptied=frozenset({broker}), moves_max=0, moves_leaders=False)
    try:
        plan = plan_balance(seen.placed, seen.brokers, options, frozen=list(seen.moving))
    except ImpossiblePlanError as error:
        raise UsageError(str(error)) from error
    leaving = {
        where: [node for node in move.replicas if node not in move.removing]
        for where, move in seen.moving.items()
        if broker in move.removing
    }
    staying = [where for where, move in seen.moving.items() if broker in move.wanted]
    if staying:
        topic, number = staying[0]
        remedy = f"wait, or moldau reassign cancel {topic} {number}"
        raise UsageError(f"{topic}-{number} moves to broker {broker} now; {remedy}")
    return {**{where: list(replicas) for where, replicas in plan.items()}, **leaving}
