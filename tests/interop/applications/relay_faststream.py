"""Sends a line on for each of its words with FastStream: BOOTSTRAP NAME FOLDER DRIVER.

The driver is kafka (aiokafka) or confluent; there is no state, so the folder stays empty.
"""

import asyncio
import importlib
import sys

from faststream import AckPolicy, FastStream


def main(bootstrap, name, _, driver):
    KafkaBroker = importlib.import_module(f"faststream.{driver}").KafkaBroker
    broker = KafkaBroker(bootstrap.split(","), acks="all", enable_idempotence=True)
    application = FastStream(broker)

    @broker.subscriber(
        f"{name}-lines",
        group_id=f"{name}-relay",
        auto_offset_reset="earliest",
        session_timeout_ms=6000,
        heartbeat_interval_ms=1000,
        ack_policy=AckPolicy.NACK_ON_ERROR,
    )
    async def relay(line: str) -> None:
        for word in line.split():
            await broker.publish(line, topic=f"{name}-counts", key=word.encode())

    asyncio.run(application.run())


main(*sys.argv[1:])
