"""Counts words with Quix Streams: BOOTSTRAP NAME FOLDER GUARANTEE.

It repartitions words by a topic of its own, keeps counts with a changelog, and emits each count as a record.
"""

import sys

from quixstreams import Application
from quixstreams.models import TopicConfig


def count(_, state):
    """Returns the number of times that this word has come."""
    total = state.get("total", 0) + 1
    state.set("total", total)
    return total


def main(bootstrap, name, folder, guarantee):
    application = Application(
        broker_address=bootstrap,
        consumer_group=f"{name}-counter",
        auto_offset_reset="earliest",
        processing_guarantee=guarantee,
        commit_interval=0.3,
        state_dir=folder,
        consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
        consumer_poll_timeout=0.2,
    )
    replicated = TopicConfig(num_partitions=3, replication_factor=3)
    lines = application.topic(f"{name}-lines", key_deserializer="str", value_deserializer="str", config=replicated)
    counts = application.topic(f"{name}-counts", key_serializer="str", value_serializer="str", config=replicated)
    words = application.dataframe(lines).apply(lambda line: line.split(), expand=True)
    words = words.group_by(lambda word: word, name="word")
    words.apply(count, stateful=True).apply(str).to_topic(counts)
    application.run()


main(*sys.argv[1:])
