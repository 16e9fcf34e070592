"""Goal: a copy that the target does not have, or does not let be written, holds up no other topic.

Method: simulated clusters.
"""

import pytest
import trio

from moldau import TopicPartition
from moldau.admin import Acl
from moldau.admin.calls.acls import AclFilter
from support.mirror.clusters import numbers, run_clusters
from support.proof import proof_beyond

MODES = ["disabled", "enabled"]


@pytest.mark.parametrize("mode", proof_beyond(1, MODES))
def test_a_copy_that_is_deleted_holds_up_no_others(mode):
    """The mirror waited for its metadata, a minute at each attempt, and copied nothing else meanwhile."""

    async def scenario(clusters):
        settings = clusters.settings(
            ["east"], "hub", exactly_once_source_support=mode, refresh_topics_interval_seconds=600
        )
        for topic in ("gone", "kept"):
            await clusters.create("east", topic)
        clusters.start(settings)
        for topic in ("gone", "kept"):
            await clusters.fill("east", topic, numbers(0, 10))
            await clusters.wait_values("hub", f"east.{topic}", numbers(0, 10))
        async with clusters.admin("hub") as admin:
            await admin.delete_topics(["east.gone"])
        await trio.sleep(2)
        await clusters.fill("east", "gone", numbers(10, 20))
        for number in range(20, 26):
            await trio.sleep(7)
            await clusters.fill("east", "kept", numbers(number, number + 1))
            await clusters.wait_values("hub", "east.kept", numbers(number, number + 1), timeout_s=20)
        (statistics,) = clusters.mirrors["mirror"].statistics
        assert "the target does not show partition east.gone-0" in statistics.last_error

    run_clusters(scenario, auto_create_topics_enable="false")


AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.mark.parametrize("level", proof_beyond(1, [2, 1]))
def test_positions_that_must_not_be_written_make_it_wait(level):
    """The mirror wrote its records to the target, aborted them and read them again, hundreds of times in a minute."""

    async def scenario(clusters):
        settings = clusters.settings(["east"], "hub", exactly_once_source_support="enabled")
        (source,) = settings.sources
        store = source.policy.offsets_topic("east")
        allowed = [
            Acl(resource="topic", name=store, principal="User:ANONYMOUS", operation=operation)
            for operation in ("describe", "describe-configs", "create", "read")
        ]
        async with clusters.admin("hub") as admin:
            if level == 1:
                await admin.update_features({"transaction.version": 1}, allow_downgrade=True)
            await admin.create_acls(allowed)
        await clusters.create("east", "kept")
        await clusters.fill("east", "kept", numbers(0, 10))
        clusters.start(settings)
        await trio.sleep(60)
        (statistics,) = clusters.mirrors["mirror"].statistics
        assert 3 <= statistics.failures <= 12
        assert not statistics.records
        assert "TOPIC_AUTHORIZATION_FAILED" in statistics.last_error
        async with clusters.admin("hub") as admin:
            await admin.delete_acls([AclFilter(name=store)])
        assert await clusters.wait_values("hub", "east.kept", numbers(0, 10), timeout_s=90) == list(numbers(0, 10))

    run_clusters(scenario, **AUTHORIZER)


@pytest.mark.parametrize("level", proof_beyond(1, [1, 2]))
def test_a_copy_that_must_not_be_written_holds_up_no_others(level):
    """At level 1 of transactions, before Kafka 4.0, it is refused before its records leave: each transaction failed."""

    async def scenario(clusters):
        async with clusters.admin("hub") as admin:
            if level == 1:
                await admin.update_features({"transaction.version": 1}, allow_downgrade=True)
            for topic in ("closed", "open"):
                await clusters.create("east", topic)
                await clusters.create("hub", f"east.{topic}")
            allowed = [
                Acl(resource="topic", name="east.closed", principal="User:ANONYMOUS", operation=operation)
                for operation in ("describe", "describe-configs", "alter-configs")
            ]
            await admin.create_acls(allowed)
        clusters.start(clusters.settings(["east"], "hub", exactly_once_source_support="enabled"))
        await clusters.fill("east", "closed", numbers(0, 10))
        for first in (10, 20, 30):
            await clusters.fill("east", "open", numbers(first, first + 10))
            await clusters.wait_values("hub", "east.open", numbers(first, first + 10), timeout_s=20)
        (statistics,) = clusters.mirrors["mirror"].statistics
        assert statistics.state(TopicPartition("closed", 0)).failures
        assert "closed-0: TOPIC_AUTHORIZATION_FAILED" in statistics.last_error

    run_clusters(scenario, **AUTHORIZER)
