"""Loops of mirrors: refused by names, by headers, and by heartbeats.

Goal: no record goes round between clusters that mirror each other, with either naming policy. Method: two or three
simulated clusters with a mirror in each direction; the numbers of records must come to rest.
"""

import itertools

import pytest
import trio

from moldau.admin.calls.acls import Acl
from moldau.mirror.core.provenance import HEADER
from moldau.mirror.errors import MirrorStoppedError
from support.mirror.clusters import numbers, run_clusters
from support.proof import proof_beyond

IDENTITY = "IdentityReplicationPolicy"


def test_default_names_refuse_loops():
    """Each cluster gets the other's topic once; what came from a cluster is not sent back to it."""

    async def scenario(clusters):
        for alias in ("east", "west"):
            await clusters.create(alias, "orders")
        clusters.start(clusters.settings(["east"], "west"), "there")
        clusters.start(clusters.settings(["west"], "east"), "back")
        await clusters.fill("east", "orders", numbers(0, 30))
        await clusters.fill("west", "orders", numbers(30, 60))
        await clusters.wait_values("west", "east.orders", numbers(0, 30))
        await clusters.wait_values("east", "west.orders", numbers(30, 60))
        await trio.sleep(15)
        for alias, other in (("east", "west"), ("west", "east")):
            async with clusters.admin(alias) as admin:
                names = {topic.name for topic in await admin.list_topics()}
            orders = {name for name in names if name.endswith("orders")}
            assert orders == {"orders", f"{other}.orders"}
            # Mirrored heartbeats have been in this cluster, so they are not sent back either.
            assert {name for name in names if name.endswith("heartbeats")} == {"heartbeats", f"{other}.heartbeats"}

    run_clusters(scenario, "east", "west")


@pytest.mark.parametrize("mode", proof_beyond(1, ["disabled", "enabled"]))
def test_headers_refuse_loops_of_equal_names(mode):
    """Both clusters hold the records of both, once, and each copy carries the id of the cluster that it came from."""

    async def scenario(clusters):
        keys = {"replication.policy.class": IDENTITY, "allow.cycles": True, "topics": ["orders"]}
        for alias in ("east", "west"):
            await clusters.create(alias, "orders")
        clusters.start(clusters.settings(["east"], "west", exactly_once_source_support=mode, **keys), "there")
        clusters.start(clusters.settings(["west"], "east", exactly_once_source_support=mode, **keys), "back")
        await clusters.fill("east", "orders", numbers(0, 30))
        await clusters.fill("west", "orders", numbers(30, 60))
        for alias in ("east", "west"):
            await clusters.wait_values(alias, "orders", numbers(0, 60))
        await trio.sleep(15)
        for alias in ("east", "west"):
            assert sorted(await clusters.values(alias, "orders")) == numbers(0, 60)
        async with clusters.admin("east") as admin:
            east_id = (await admin.describe_cluster()).cluster_id
        for record in await clusters.read("west", "orders"):
            is_copy = record.value < b"%06d" % 30
            assert dict(record.headers).get(HEADER) == (east_id.encode() if is_copy else None)
            assert record.headers[0] == ("h", record.value)
        there = clusters.mirrors["there"].statistics[0]
        assert there.records_refused == 30

    run_clusters(scenario, "east", "west")


@pytest.mark.parametrize("way", proof_beyond(1, [["east", "west", "hub"], ["east", "west"]]), ids=["ring", "pair"])
def test_a_cycle_of_equal_names_is_refused(way):
    """The mirror that would close the cycle finds the others by their heartbeats, and ends."""

    async def scenario(clusters):
        keys = {"replication.policy.class": IDENTITY}
        await clusters.create("east", "orders")
        for source, target in itertools.pairwise(way):
            clusters.start(clusters.settings([source], target, **keys), f"{source}-{target}")
            await trio.sleep(8)
        clusters.start(clusters.settings([way[-1]], way[0], **keys), "last")
        with trio.fail_after(60):
            await clusters.world.node("last").wait_ended()
        failure = clusters.world.node("last").failure
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        assert isinstance(failure, MirrorStoppedError)
        assert failure.is_usage
        assert " -> ".join([way[-1], *way]) in str(failure)
        await clusters.fill("east", "orders", numbers(0, 30))
        await clusters.wait_values(way[-1], "orders", numbers(0, 30))
        await trio.sleep(5)
        assert await clusters.values("east", "orders") == numbers(0, 30)

    run_clusters(scenario, *way, fails=True)


def test_heartbeats_that_the_source_hides_are_named(caplog):
    """A user with rights on the mirrored topics only got no word that cycles were not noticed."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }

    def warnings():
        return [line for line in caplog.messages if line.startswith("heartbeats-hidden")]

    async def scenario(clusters):
        await clusters.create("east", "orders")
        await clusters.fill("east", "orders", numbers(0, 10))
        clusters.start(clusters.settings(["east"], "west", **{"replication.policy.class": IDENTITY}))
        await clusters.wait_values("west", "orders", numbers(0, 10))
        assert warnings() == []  # the source has no heartbeats
        await clusters.create("east", "heartbeats")
        async with clusters.admin("east") as admin:
            await admin.create_acls(
                [Acl(resource="topic", name="heartbeats", principal="User:other", operation="read")]
            )
        await trio.sleep(10)
        assert len(warnings()) == 1

    run_clusters(scenario, "east", "west", **settings)


def test_two_aliases_of_one_cluster_are_refused():
    async def scenario(clusters):
        clusters.by_alias["again"] = clusters["east"]
        clusters.start(clusters.settings(["east"], "again"))
        with trio.fail_after(60):
            await clusters.world.node("mirror").wait_ended()
        assert "east and again are the same cluster" in str(clusters.world.node("mirror").failure)

    run_clusters(scenario, "east", fails=True)
