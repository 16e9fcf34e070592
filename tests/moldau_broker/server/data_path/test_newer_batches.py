"""Goal: a follower accepts from a leader no records of an epoch newer than the one in which it fetches.

Method: two brokers in virtual time; the test writes a batch of the next epoch into the leader's log, as the next leader
writes it into a deposed leader's log while an answer is still being sent.
"""

from __future__ import annotations

import trio

from support.cluster.broker_cluster import batch, run_cluster


def test_a_follower_stops_before_a_batch_newer_than_its_leader() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", replicas=2)
        leader = await cluster.leader("t")
        follower = cluster.replica(3 - leader, "t")
        led = cluster.replica(leader, "t")
        producing = cluster.client(leader)
        await producing.produce("t", batch(b"0"))
        await cluster.until(lambda: follower.log.log_end_offset == 1)
        epoch = led.replica.state.leader_epoch
        for number in range(2):
            led.log.append_as_leader(
                memoryview(bytearray(batch(b"%d" % number))), leader_epoch=epoch + number, now_ms=1_000
            )
        await trio.sleep(3)
        assert led.log.log_end_offset == 3
        assert (follower.log.log_end_offset, follower.log.latest_epoch) == (2, epoch)
        client.close()
        producing.close()

    run_cluster(scenario, brokers=2)
