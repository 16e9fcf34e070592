"""Goal: a broker says at its start whether its object store answers, and starts in any case.

Method: whole brokers in virtual time, whose store is away at first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from moldau_broker.server.remote_log.store_probe import advice_for
from support.cluster.broker_cluster import run_cluster
from support.objects.tiered import TIERED, store_away

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Cluster


def _events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message.split(" ")[0] for message in caplog.messages if message.startswith("object-store-")]


def test_a_start_names_the_store_that_answers(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: Cluster) -> None:
        await trio.sleep(5)

    caplog.set_level("INFO")
    run_cluster(scenario, **TIERED)
    assert _events(caplog) == ["object-store-answers"]
    assert "url=s3://bucket/prefix" in next(each for each in caplog.messages if each.startswith("object-store-"))


def test_a_store_that_is_away_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.stop(1)
        caplog.clear()
        with store_away(cluster):
            cluster.start_broker(1)
            await trio.sleep(120)
            causes = _events(caplog)
            assert causes
            assert set(causes) == {"object-store-fails"}
            await cluster.client(1).create_topic("t")
        await trio.sleep(60)
        assert _events(caplog) == [*causes, "object-store-answers"]

    caplog.set_level("INFO")
    run_cluster(scenario, **TIERED)


@pytest.mark.parametrize(
    ("cause", "part"),
    [
        ("the directory of the object store is missing: is it mounted?", "mount"),
        ("403 Forbidden, AccessDenied", "rights"),
        ("404 Not Found, NoSuchBucket", "bucket"),
        ("its certificate is not trusted", "truststore"),
        ("no credentials were found", "key"),
        ("something else", "look at the store"),
    ],
)
def test_each_cause_has_its_advice(cause: str, part: str) -> None:
    assert part in advice_for(cause)
