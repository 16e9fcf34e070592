"""Looks whether brokers answer at ``kafka.bootstrap.servers``, before the driver of a query plans or writes.

A wrong address would otherwise cost the time that a query grants to an outage, in the sink once for each attempt of a
task. How long the driver waits depends on what it knows of the address:

- A streaming query that has read or written nothing yet: a wrong address is as likely as an outage, ``FIRST_MS``.
- A streaming query that is known to have finished a batch: its cluster has an outage, ``KNOWN_MS``.
- A batch may be new, or come from ``foreachBatch`` of a query: ``REACH_MS``.

A key of the client replaces all three. Blocking sockets and no client: the sink asks before each micro-batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.values import join_address
from pyspark_moldau.client_options import API_TIMEOUT, PREFIX
from pyspark_moldau.errors import ReadTimeoutError
from pyspark_moldau.wire.cluster import Cluster, NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark_moldau.client_options import ClientOptions
    from pyspark_moldau.wire.cluster import Address

FIRST_MS: Final = 10_000
REACH_MS: Final = 30_000
KNOWN_MS: Final = 60_000
_ADDRESS_MS_MIN: Final = 1_000
"""How long any address has for an answer, however many there are."""
_NAMED_MAX: Final = 10
"""How many of the addresses that brokers name are asked: one that answers is enough."""


def reached(client: ClientOptions, limit_ms: int, key: str = API_TIMEOUT) -> Cluster:
    """Returns the cluster of ``client`` once a broker has answered; the caller closes it by ``forget``.

    A query goes on with the addresses that the brokers name (``advertised.listeners``), so one of these must answer
    too.

    Args:
        client: the options of the query.
        limit_ms: how long the driver waits.
        key: the key of the client that replaces the limit, for the error.

    Raises:
        ReadTimeoutError: no broker answers in time; the text names each address with its cause.
        OptionError: the keys of TLS or SASL are wrong, or the broker refused the login.
    """
    servers = _shown(client.bootstrap)
    cluster = _answering(client, limit_ms, f"no broker at {servers} answered", "correct the address", key)
    named = tuple(cluster.brokers.values())
    if not named or not set(named).isdisjoint(client.bootstrap):
        return cluster
    cluster.forget()
    problem = f"the brokers at {servers} name other addresses, none of which answered"
    remedy = "correct advertised.listeners of the brokers, use the address of another listener"
    return _answering(replace(client, bootstrap=named[:_NAMED_MAX]), limit_ms, problem, remedy, key)


def unanswered(problem: str, limit_ms: int, causes: str, remedy: str, key: str) -> str:
    """Returns the error of addresses at which no broker answers; ``causes`` says why, by address."""
    remedies = f"{remedy}, or start the brokers; {PREFIX}{key} sets how long to wait"
    return f"{PREFIX}bootstrap.servers: {problem} within {limit_ms / 1000:g} s ({causes}); {remedies}"


def _shown(addresses: Iterable[Address]) -> str:
    """Returns addresses as ``bootstrap.servers`` has them."""
    return ",".join(join_address(host, port) for host, port in addresses)


def _answering(client: ClientOptions, limit_ms: int, problem: str, remedy: str, key: str) -> Cluster:
    # A silent address leaves time for the others.
    each_ms = min(limit_ms, max(limit_ms // len(client.bootstrap), _ADDRESS_MS_MIN))
    cluster = Cluster(
        replace(
            client,
            connect_timeout_ms=min(client.connect_timeout_ms, each_ms),
            request_timeout_ms=min(client.request_timeout_ms, each_ms),
            fetch_wait_ms=0,
        )
    )
    try:
        cluster.retry("find a broker", lambda: cluster.refresh([]), timeout_ms=limit_ms)
    except ReadTimeoutError as error:
        last = error.__cause__
        causes = last.causes if isinstance(last, NoAnswerError) else str(last)
        raise ReadTimeoutError(unanswered(problem, limit_ms, causes, remedy, key)) from error
    return cluster
