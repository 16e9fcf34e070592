"""Exports fetch sessions, share sessions, share-partitions and transactions, under Kafka's names where it has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau_broker.coordinator.transaction.core.state import TransactionStatus

if TYPE_CHECKING:
    from moldau.runtime.telemetry.metrics import Registry
    from moldau_broker.server.lifecycle.broker import Broker

_FETCH: Final = "kafka_server_fetchsessioncache_"
_SHARE: Final = "kafka_server_sharesessioncache_"
_STATES: Final = tuple(status.label for status in TransactionStatus)


def register_fetch_sessions(registry: Registry, broker: Broker) -> None:
    """Adds the sessions of Fetch, of consumers and of followers."""
    sessions = registry.gauge(_FETCH + "numincrementalfetchsessions", "Open fetch sessions.").labels()
    partitions = registry.gauge(
        _FETCH + "numincrementalfetchpartitionscached", "Partitions of all fetch sessions."
    ).labels()
    evictions = registry.counter(
        _FETCH + "incrementalfetchsessionevictions_total", "Fetch sessions removed to make room for others."
    ).labels()

    def update() -> None:
        cache = broker.context.sessions
        sessions.set(len(cache))
        partitions.set(cache.partition_count)
        evictions.value = cache.evictions

    registry.on_expose(update)


def register_shares(registry: Registry, broker: Broker) -> None:
    """Adds the sessions of share consumers, and the share-partitions that this broker delivers."""
    sessions = registry.gauge(_SHARE + "sharesessionscount", "Open share sessions.").labels()
    partitions = registry.gauge(_SHARE + "sharepartitionscount", "Partitions of all share sessions.").labels()
    led = registry.gauge("moldau_share_partitions", "Share-partitions (of a group and a partition) held here.").labels()
    in_flight = registry.gauge(
        "moldau_share_records_in_flight", "Records of share-partitions between their start and end offsets."
    ).labels()
    letters = registry.counter(
        "moldau_share_dead_letters_total", "Dead letters of share groups by outcome: written or given_up.", "outcome"
    )

    def update() -> None:
        shares = broker.context.share_partitions
        open_sessions, held, flying = shares.statistics()
        sessions.set(open_sessions)
        partitions.set(shares.sessions.partition_count)
        led.set(held)
        in_flight.set(flying)
        counts = shares.dead_letters.counts
        letters.labels("written").value = counts.written
        letters.labels("given_up").value = counts.given_up

    registry.on_expose(update)


def register_transactions(registry: Registry, broker: Broker) -> None:
    """Adds the transactional ids that this broker coordinates; Kafka has no metric of their states."""
    by_state = registry.gauge("moldau_transactional_ids", "Coordinated transactional ids by state.", "state")
    partitions = registry.gauge("moldau_transaction_partitions", "Led partitions of __transaction_state.", "state")
    longest = registry.gauge(
        "moldau_transaction_open_max_ms", "Milliseconds since the start of the oldest open transaction, or 0."
    ).labels()

    def update() -> None:
        statistics = broker.context.transactions.statistics()
        for state in _STATES:
            by_state.labels(state).set(statistics.states.get(state, 0))
        for state in ("active", "loading"):
            partitions.labels(state).set(statistics.partitions.get(state, 0))
        longest.set(statistics.longest_open_ms)

    registry.on_expose(update)
