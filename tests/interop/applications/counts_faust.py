"""Counts words with Faust: BOOTSTRAP NAME FOLDER GUARANTEE, the last as Faust spells it.

It repartitions words by a topic of its own, keeps counts in a table with a changelog, and emits each count as a record.
"""

import sys

import faust

bootstrap, name, folder, guarantee = sys.argv[1:]
application = faust.App(
    f"{name}-counter",
    broker=";".join(f"kafka://{address}" for address in bootstrap.split(",")),
    store="memory://",
    datadir=folder,
    topic_partitions=3,
    topic_replication_factor=3,
    processing_guarantee=guarantee,
    broker_session_timeout=6.0,
    broker_heartbeat_interval=1.0,
    broker_commit_interval=0.3,
)
TEXT = {"key_type": str, "value_type": str, "key_serializer": "raw", "value_serializer": "raw"}
lines = application.topic(f"{name}-lines", **TEXT)
words = application.topic(f"{name}-words", **TEXT, partitions=3, internal=True)
counts = application.topic(f"{name}-counts", **TEXT)
table = application.Table("counts", default=int, partitions=3)


@application.agent(lines)
async def split(stream):
    """Sends each word to the partition of its key."""
    async for line in stream:
        for word in line.split():
            await words.send(key=word, value=word)


@application.agent(words)
async def count(stream):
    """Counts words, and emits each count."""
    async for word in stream:
        table[word] += 1
        await counts.send(key=word, value=str(table[word]))


sys.argv = ["counts", "worker", "--loglevel=info", "--without-web"]
application.main()
