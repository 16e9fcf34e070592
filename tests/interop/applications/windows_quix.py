"""Counts words in windows of 10 s with Quix Streams, and emits each closed window: BOOTSTRAP NAME FOLDER."""

import sys

from quixstreams import Application
from quixstreams.models import TopicConfig


def main(bootstrap, name, folder):
    application = Application(
        broker_address=bootstrap,
        consumer_group=f"{name}-windows",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=0.3,
        state_dir=folder,
        consumer_poll_timeout=0.2,
        consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
    )
    replicated = TopicConfig(num_partitions=3, replication_factor=3)
    lines = application.topic(f"{name}-lines", key_deserializer="str", value_deserializer="str", config=replicated)
    counts = application.topic(f"{name}-counts", key_serializer="str", value_serializer="json", config=replicated)
    application.dataframe(lines).tumbling_window(10_000).count().final().to_topic(counts)
    application.run()


main(*sys.argv[1:])
