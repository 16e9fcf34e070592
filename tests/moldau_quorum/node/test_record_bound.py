"""A record that no piece of a snapshot could hold is refused before it enters the log.

Goal: one request cannot store what ends each controller at its next snapshot. Method: one controller gets requests with
single records that are too long, and goes on.
"""

from __future__ import annotations

from uuid import UUID

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature, Listener
from moldau_jepsen.world.world import run_world
from moldau_quorum.controller.cluster.features import SUPPORTED_FEATURES
from moldau_quorum.metadata.snapshot import RECORD_BYTES_MAX
from support.quorum.cluster import TestCluster, create, topic
from support.quorum.memory_log import MemoryLog


def upsertion(user: str, salt_bytes: int) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=user, mechanism=1, iterations=4_096, salt=b"s" * salt_bytes, salted_password=b"p" * 32
    )


def test_a_record_that_fits_no_snapshot_is_refused() -> None:
    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1, make_log=MemoryLog)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        controller = cluster.controllers[101].running

        async def ask(request):
            return await controller.active.answer(controller.active.submit(request, None))

        long = AlterUserScramCredentialsRequest(upsertions=[upsertion("long", RECORD_BYTES_MAX)], deletions=[])
        assert (await ask(long)).results[0].error_code == ErrorCode.POLICY_VIOLATION
        listeners = [Listener(name=f"{number:02}{'n' * 32_000}", host="h" * 32_000, port=1) for number in range(32)]
        features = [
            Feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in SUPPORTED_FEATURES.items()
        ]
        broker = BrokerRegistrationRequest(
            broker_id=9, incarnation_id=UUID(int=9), listeners=listeners, features=features, log_dirs=[], rack=None
        )
        assert (await ask(broker)).error_code == ErrorCode.POLICY_VIOLATION
        # Many records in one command are bounded one by one.
        many = [upsertion(f"u{number}", 300_000) for number in range(5)]
        response = await ask(AlterUserScramCredentialsRequest(upsertions=many, deletions=[]))
        assert [result.error_code for result in response.results] == [ErrorCode.NONE] * 5
        await create(cluster.client(), topic("t"))
        image = controller.machine.image
        assert sorted(user for user, _ in image.scram_credentials) == [f"u{number}" for number in range(5)]
        assert sorted(image.brokers) == [1, 2, 3]
        assert not world.failures

    run_world(main, 83)
