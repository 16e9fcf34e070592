"""The broker's session with the controller: what happens during a heartbeat is told by the next one, at once."""

from __future__ import annotations

from uuid import UUID

import trio

from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.session import BrokerRegistration, BrokerSession
from moldau_quorum.metadata.records import Endpoint
from support.quorum.cluster import BROKER_PORT, TestCluster, eventually

DIRECTORIES = (UUID(int=1001), UUID(int=1002))
INTERVAL_MS = 2_000


def test_a_directory_failing_in_a_heartbeat_is_told_at_once() -> None:
    """A directory that fails during a heartbeat is told at once."""

    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1)
        cluster.start_controllers()
        controller = await cluster.wait_active()
        environment = world.node("b1").environment
        failed: list[UUID] = []
        begun = trio.Event()

        def metadata_offset() -> int:
            begun.set()  # a heartbeat is being made
            return 1 << 40

        session = BrokerSession(
            environment,
            cluster.voters,
            BrokerRegistration(
                broker_id=1,
                incarnation_id=UUID(int=7),
                endpoints=(Endpoint(name="PLAINTEXT", host="b1", port=BROKER_PORT),),
                log_dirs=DIRECTORIES,
            ),
            metadata_offset=metadata_offset,
            offline_log_dirs=lambda: tuple(failed),
            heartbeat_interval_ms=INTERVAL_MS,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(session.run)
            await session.wait_unfenced()
            await trio.sleep(INTERVAL_MS / 2000)
            begun = trio.Event()
            answered_ms = session.last_contact_ms
            await begun.wait()
            assert session.last_contact_ms == answered_ms, "it is under way"
            failed.append(DIRECTORIES[0])
            session.wake()
            asked = trio.current_time()
            broker = controller.running.machine.image.brokers[1]
            assert broker.log_dirs == DIRECTORIES
            await eventually(lambda: controller.running.machine.image.brokers[1].log_dirs == DIRECTORIES[1:])
            assert trio.current_time() - asked < 0.2
            nursery.cancel_scope.cancel()

    run_world(main, 1)
