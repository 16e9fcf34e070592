"""Restarts the nodes of a cluster one by one; each waits until the cluster is whole again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from moldau_cli import output
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.operations.moves import elect_preferred
from moldau_cli.operations.partial import configs_of_present, describe_present
from moldau_cli.plans.roll import (
    BROKER,
    CONTROLLER,
    Comeback,
    Picture,
    absent,
    names,
    next_node,
    obstacles,
    out_of_sync,
    roll_nodes,
    tolerated_after,
    unserved_meanwhile,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from moldau import Admin
    from moldau_cli.operations.restarts import Restarter
    from moldau_cli.plans.roll import Replica, RollNode

POLL_S: Final = 0.3
LOOK_S_MAX: Final = 15.0
"""For one look at the cluster; a request to a node that restarts may wait longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollOptions:
    """How a cluster is rolled."""

    timeout_s: float
    """How long the cluster may take to become whole after each restart."""
    force: bool
    """Whether nodes that are down, and partitions that are out of sync or not served meanwhile, are accepted."""
    elects: bool
    """Whether the preferred replicas get leadership at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """The outcome of a roll."""

    restarted: tuple[int, ...]
    elected: int


@dataclass(slots=True)
class RollProgress:
    """How far a roll has come, for a user who interrupts it."""

    remaining: list[RollNode] = field(default_factory=list)
    """The nodes that have not been restarted, with the one that restarts."""
    restarting: RollNode | None = None
    """The node whose restart has begun and not ended."""
    begun: bool = False

    def after_interrupt(self) -> str:
        """Returns how to go on."""
        if not self.begun:
            return "interrupted before the first restart: no node was touched"
        if not self.remaining:
            return "interrupted after the last restart; moldau elect gives leadership to the preferred replicas"
        if self.restarting is None:
            return f"interrupted; {_continuation(self.remaining)}"
        return (
            f"interrupted while {self.restarting} restarts: see that it is back (moldau cluster status); "
            f"{_continuation(self.remaining)}"
        )


async def find_nodes(admin: Admin) -> list[RollNode]:
    """Returns the nodes of a cluster, as it knows them.

    Raises:
        UsageError: the address of a voter is not known.
        KafkaError: a request was refused.
    """
    cluster, quorum = await admin.describe_cluster(include_fenced=True), await admin.describe_quorum()
    addresses = {node: (host, port) for node, host, port in quorum.endpoints}
    for voter in quorum.voters:
        if voter.replica_id not in addresses:
            raise UsageError(f"the quorum does not know the address of controller {voter.replica_id}")
    return roll_nodes({one.node_id: (one.host, one.port) for one in cluster.brokers}, addresses)


async def reasons_against_roll(admin: Admin, nodes: Sequence[RollNode], chosen: Sequence[RollNode]) -> list[str]:
    """Returns why a roll must not begin, unless it is forced; the most serious first."""
    from moldau.admin import ConfigResource, ResourceType

    picture = await look_at_cluster(admin)
    found = obstacles(picture, nodes)
    brokers = [one.node_id for one in chosen if BROKER in one.roles]
    resources = [ConfigResource(type=ResourceType.TOPIC, name=name) for name in picture.topics]
    configs = await configs_of_present(admin, resources) if brokers else {}
    min_isr = {one.name: int(entries["min.insync.replicas"].value or 1) for one, entries in configs.items()}
    present = {name: topic for name, topic in picture.topics.items() if name in min_isr}
    unserved = unserved_meanwhile(present, min_isr, brokers)
    if unserved:
        subject, reason = unserved[0]
        more = f" and {len(unserved) - 1} more partitions" if len(unserved) > 1 else ""
        found.append(f"{subject} ({reason}){more} would not be fully served while a broker restarts")
    return found


async def look_at_cluster(admin: Admin, ask: int | None = None) -> Picture:
    """Asks for quorum, brokers and partitions.

    ``ask`` names the broker that is asked for the partitions. One that has just registered knows all changes of the
    ISR from before; another one may still report the state before the restart.

    Raises:
        KafkaError: a request was refused, or not answered in time.
    """
    cluster = await admin.describe_cluster()
    names = [topic.name for topic in await admin.list_topics(include_internal=True)]
    if ask is None:
        topics = await describe_present(admin, names)
    else:  # a topic that this broker does not know is deleted, or so new that it must be waited for
        topics = await admin.describe_topics(names, node_id=ask) if names else {}
    return Picture(
        quorum=await admin.describe_quorum(),
        live=frozenset(one.node_id for one in cluster.brokers),
        topics=topics,
    )


async def roll(
    admin: Admin,
    nodes: Sequence[RollNode],
    chosen: Sequence[RollNode],
    restarter: Restarter,
    options: RollOptions,
    progress: RollProgress | None = None,
) -> Rolled:
    """Restarts the chosen nodes one by one.

    Args:
        admin: Is connected to the cluster.
        nodes: All nodes, which must be in service between two restarts.
        chosen: Those that are restarted.
        restarter: Restarts one.
        options: Limits.
        progress: Is kept up to date, and says after an interrupt how to go on.

    Raises:
        CommandError: the roll must not begin, or a node did not come back. No further node was restarted.
    """
    picture = await look_at_cluster(admin)
    tolerated = out_of_sync(picture.topics) if options.force else frozenset()
    down = set(absent(picture, nodes)) if options.force else set()
    progress = progress or RollProgress()
    remaining, done = list(chosen), list[int]()
    progress.remaining = remaining
    while remaining:
        present = [one for one in nodes if one.node_id not in down]
        picture = await _whole(admin, present, None, tolerated, options.timeout_s, remaining)
        node = next_node(remaining, picture.quorum.leader_id)
        place = f"{len(done) + 1} of {len(chosen)}"
        output.note(f"{place}: {node} restarts")
        began_s = trio.current_time()
        progress.begun, progress.restarting = True, node
        try:
            await restarter.restart(node)
        except CommandError as error:
            raise CommandError(f"{error}; {_continuation(remaining)}") from error
        remaining.remove(node)
        progress.restarting = None
        down.discard(node.node_id)
        tolerated = tolerated_after(tolerated, node.node_id, picture.topics)
        present = [one for one in nodes if one.node_id not in down]
        await _whole(admin, present, node, tolerated, options.timeout_s, remaining)
        output.note(f"{place}: {node} is back, and the cluster whole, after {trio.current_time() - began_s:.1f} s")
        done.append(node.node_id)
    elected = 0
    if options.elects:
        topics = (await look_at_cluster(admin)).topics
        strayed = [
            (name, part.partition)
            for name, topic in topics.items()
            for part in topic.partitions
            if part.leader not in (-1, part.replicas[0])
        ]
        elected = await elect_preferred(admin, strayed)
    return Rolled(restarted=tuple(done), elected=elected)


async def _whole(
    admin: Admin,
    nodes: Sequence[RollNode],
    restarted: RollNode | None,
    tolerated: Collection[Replica],
    timeout_s: float,
    remaining: Sequence[RollNode],
) -> Picture:
    """Waits until nothing is in the way of the next restart, and returns what the cluster reported then.

    Raises:
        CommandError: that took too long.
    """
    from moldau.protocol.errors import KafkaError

    ask = restarted.node_id if restarted is not None and BROKER in restarted.roles else None
    found, log_end = ["the cluster does not answer"], 0
    comeback = Comeback(restarted.node_id) if restarted is not None and CONTROLLER in restarted.roles else None
    with trio.move_on_after(timeout_s):
        while True:
            try:
                with trio.fail_after(LOOK_S_MAX):
                    picture = await look_at_cluster(admin, ask)
            except trio.TooSlowError:
                found = ["the cluster does not answer"]
            except KafkaError as error:
                found = [str(error)]
            else:
                log_end = log_end or picture.quorum.high_watermark
                found = obstacles(picture, nodes, tolerated=tolerated, log_end=log_end)
                if comeback is not None and not comeback.has_answered(picture.quorum):
                    found.append("it has not answered the active controller")
                if not found:
                    return picture
            await trio.sleep(POLL_S)
    what = "the cluster is not whole" if restarted is None else f"{restarted} did not come back"
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    raise CommandError(f"{what} within {timeout_s:g} s: {found[0]}{more}; {_continuation(remaining)}")


def _continuation(remaining: Sequence[RollNode]) -> str:
    if not remaining:
        return "all nodes were restarted"
    return f"no other node was touched; when the cluster is healthy, --nodes {names(remaining)} continues"
