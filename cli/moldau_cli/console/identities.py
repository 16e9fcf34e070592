"""Clients of the cluster in the name of one user: the console's own, or a user that signed in."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from moldau.admin.admin import Admin
from moldau.admin.requester import Requester
from moldau.cluster.caller import Caller
from moldau.cluster.client import ClusterClient
from moldau.protocol.errors import KafkaError
from moldau.runtime.config import ADMIN_CONFIG
from moldau_cli.console.core.rates import RateHistory, Sample
from moldau_cli.console.data.asking import Notes, ask_ends, ask_log_dirs, leader_sizes
from moldau_cli.console.data.copies import CopiesWatch
from moldau_cli.operations.partial import describe_present

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from moldau.runtime.ports.environment import Environment

API_TIMEOUT_MS: Final = 8_000
SAMPLE_S: Final = 2.0
SAMPLE_REST: Final = 4
"""The next sample waits at least so many times as long as the last one took."""
UNUSED_S: Final = 30.0
"""Samples are taken only while a page was asked for within this time."""
SAMPLED_TOPICS_MAX: Final = 1_000


@dataclass(slots=True, kw_only=True, eq=False, repr=False)  # the settings hold passwords
class Identity:
    """The clients and the measured rates of one user."""

    settings: Mapping[str, str]
    environment: Environment
    admin: Admin
    quorum_admin: Admin
    """Asks what a controller must know, on connections of its own: without one that leads, brokers answer nothing else
    on the same ones."""
    requester: Requester
    copies: CopiesWatch
    rates: RateHistory = field(default_factory=RateHistory)
    used_at_s: float = 0.0

    def use(self) -> None:
        """Notes that a page was asked for."""
        self.used_at_s = trio.current_time()

    async def sample(self) -> None:
        """Measures log ends and log sizes once.

        Raises:
            KafkaError: the topics could not be listed.
        """
        listed = [one.name for one in await self.admin.list_topics(include_internal=False)]
        topics = await describe_present(self.admin, listed[:SAMPLED_TOPICS_MAX])
        notes = Notes()
        _, ends = await ask_ends(self.admin, topics, notes)
        brokers = {part.leader for topic in topics.values() for part in topic.partitions if part.leader >= 0}
        sizes = leader_sizes(topics, await ask_log_dirs(self.admin, brokers, notes))
        self.rates.observe(Sample(now_ms=trio.current_time() * 1000, ends=ends, sizes=sizes))

    async def sample_forever(self) -> None:
        """Measures while pages are in use. A failed sample leaves a hole in the chart, and the next one follows."""
        while True:
            began_s = trio.current_time()
            if began_s - self.used_at_s < UNUSED_S:
                try:
                    await self.sample()
                except KafkaError:
                    await trio.lowlevel.checkpoint()  # the pages themselves report why the cluster does not answer
            await trio.sleep(max(SAMPLE_S, SAMPLE_REST * (trio.current_time() - began_s)))


async def check_login(settings: Mapping[str, str], environment: Environment | None = None) -> None:
    """Asks the cluster one question with one client, so that a refused login is refused, and counted, once.

    Raises:
        ConfigError: a setting is invalid.
        KafkaError: the login was refused, or no broker answered.
    """
    bounded = {"default.api.timeout.ms": str(API_TIMEOUT_MS), "request.timeout.ms": str(API_TIMEOUT_MS), **settings}
    async with Admin(bounded, environment=environment) as admin:
        await admin.describe_cluster()


@asynccontextmanager
async def open_identity(settings: Mapping[str, str], environment: Environment | None = None) -> AsyncIterator[Identity]:
    """Opens the clients of one user for the length of the block; does not wait for a broker.

    ``settings`` are the bootstrap addresses and what all kinds of clients know about connections.

    Raises:
        ConfigError: a setting is invalid.
    """
    from moldau.runtime.ports.real import real_environment

    used = environment or real_environment()
    bounded = {"default.api.timeout.ms": str(API_TIMEOUT_MS), "request.timeout.ms": str(API_TIMEOUT_MS), **settings}
    config = ADMIN_CONFIG.parse(bounded)
    caller = Caller("Admin")
    caller.enter()
    requester = Requester(caller, timeout_ms=API_TIMEOUT_MS, retries=config.get_int("retries"))
    client = requester.cluster_client = ClusterClient(used, config, "console")
    async with (
        Admin(config, environment=used) as admin,
        Admin(config, environment=used) as quorum_admin,
        Admin(config, environment=used) as copies_admin,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(client.run)
        identity = Identity(
            settings=dict(settings),
            environment=used,
            admin=admin,
            quorum_admin=quorum_admin,
            requester=requester,
            copies=CopiesWatch(copies_admin, used.clock),
        )
        identity.use()
        nursery.start_soon(identity.sample_forever)
        nursery.start_soon(identity.copies.run)
        try:
            yield identity
        finally:
            client.close()
            nursery.cancel_scope.cancel()
