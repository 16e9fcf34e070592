"""Goal: a copy that an operator deletes in the target holds up no other topic. Method: simulated clusters."""

import pytest
import trio

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
