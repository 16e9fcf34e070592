"""Isolates a run on a cluster that was started elsewhere.

The content of such a cluster is not known. So a run gives its topics, groups and transactional ids unique names, which
no earlier or concurrent run uses. At the end it deletes its topics.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from moldau.admin import Admin
from moldau.protocol.errors import KafkaError
from moldau_jepsen.chaos.clients import ClientOptions, Workload
from moldau_jepsen.faults.kinds import FaultKind
from moldau_jepsen.workloads.operations import NO_KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.workloads.pipe import PipeOptions

FOREIGN_WORKLOADS = (
    Workload.QUEUE,
    Workload.TRANSACTIONS,
    Workload.PIPE,
    Workload.BANK,
    Workload.SHARE,
    Workload.STREAMS,
    Workload.ALL,
)
FOREIGN_KINDS = (FaultKind.REASSIGN, FaultKind.ELECT)
PROCESS_KINDS = (FaultKind.KILL, FaultKind.PAUSE, FaultKind.RESTART)
"""Faults of nodes that the run starts itself, by commands that it is given (``moldau_jepsen.chaos.outside``)."""


def foreign_kinds(*, processes: bool) -> tuple[FaultKind, ...]:
    """Returns the faults that can strike a cluster that was started elsewhere, or by commands."""
    return (*PROCESS_KINDS, *FOREIGN_KINDS) if processes else FOREIGN_KINDS


DELETE_TIMEOUT_S = 15.0


def new_mark() -> str:
    """Returns a prefix for names that no other run has, even with the same seed."""
    return f"moldau-chaos-{uuid.uuid4().hex[:12]}-"


def _pipe_with_own_names(pipe: PipeOptions, mark: str) -> PipeOptions:
    return replace(
        pipe,
        source=mark + pipe.source,
        target=mark + pipe.target,
        group=mark + pipe.group,
        id_prefix=mark + pipe.id_prefix,
    )


def with_own_names(clients: ClientOptions, mark: str) -> ClientOptions:
    """Returns the options with ``mark`` before the names of all topics, groups and transactional ids."""
    queue, transfers, bank = clients.queue, clients.transactions, clients.bank
    return replace(
        clients,
        queue=replace(queue, topic=mark + queue.topic, group=mark + queue.group),
        transactions=replace(transfers, id_prefix=mark + transfers.id_prefix),
        pipe=_pipe_with_own_names(clients.pipe, mark),
        bank=replace(
            bank,
            topics=tuple(mark + topic for topic in bank.topics),
            id_prefix=mark + bank.id_prefix,
            clerks=_pipe_with_own_names(bank.clerks, mark),
        ),
        share=replace(clients.share, topic=mark + clients.share.topic, group=mark + clients.share.group),
        streams=replace(clients.streams, topic=mark + clients.streams.topic, group=mark + clients.streams.group),
    )


async def delete_topics(
    environment: Environment, bootstrap: str, names: Sequence[str], connection: Mapping[str, object] = NO_KEYS
) -> str:
    """Deletes the topics of a run; returns the outcome for the report. A cluster may forbid the deletion."""
    try:
        with trio.fail_after(DELETE_TIMEOUT_S):
            async with Admin({**connection, "bootstrap.servers": bootstrap}, environment=environment) as admin:
                await admin.delete_topics(names)
    except trio.TooSlowError:
        return f"left there: no answer within {DELETE_TIMEOUT_S:g} s"
    except KafkaError as error:
        return f"left there: {error.code.name}: {error}"
    return "deleted at the end"
