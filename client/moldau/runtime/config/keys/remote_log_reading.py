"""Keys of reads from remote segments (KIP-405)."""

from __future__ import annotations

from moldau.runtime.config.declaration import LONG_MAX
from moldau.runtime.config.declare import CLUSTER_WIDE, MIB, SECOND_MS, integer, long

REMOTE_READING_KEYS = (
    integer(
        name="remote.fetch.max.wait.ms",
        default=500,
        group="Tiered storage",
        dynamic=CLUSTER_WIDE,
        minimum=1,
        doc="How long a fetch waits for records from the object store, in milliseconds, if its own maximum is not "
        "shorter. It is then answered without them; the read goes on, and the next fetch finds what it has read.",
    ),
    integer(
        name="remote.log.reader.threads",
        default=64,
        group="Tiered storage",
        dynamic=CLUSTER_WIDE,
        is_own=True,
        minimum=1,
        doc="Reads of remote records that a broker has in progress for fetches; Kafka's default is 10. Further fetches "
        "get no remote records, and consumers ask again. The reads have 64 MiB of memory together, however many.",
    ),
    long(
        name="remote.log.manager.fetch.max.bytes.per.second",
        default=LONG_MAX,
        group="Tiered storage",
        dynamic=CLUSTER_WIDE,
        minimum=1,
        doc="Bytes of remote records that a broker reads for fetches in a second, on average (KIP-956). Beyond it a "
        "partition is answered without records, and the client asks again. Reads in progress are not slowed down.",
    ),
    integer(
        name="remote.list.offsets.request.timeout.ms",
        default=30 * SECOND_MS,
        group="Tiered storage",
        dynamic=CLUSTER_WIDE,
        minimum=1,
        doc="How long ListOffsets may search in remote segments, in milliseconds, if the request does not name less.",
    ),
    long(
        name="remote.log.index.file.cache.total.size.bytes",
        default=128 * MIB,
        group="Tiered storage",
        dynamic=CLUSTER_WIDE,
        is_own=True,
        minimum=1,
        doc="Memory for indexes and other parts beside the records of remote segments. Kafka keeps them in files, "
        "1 GiB by default. An index that is not here is read from the object store again.",
    ),
    long(
        name="remote.log.read.cache.bytes",
        default=64 * MIB,
        group="Tiered storage",
        is_own=True,
        minimum=0,
        doc="Memory for records of remote segments, in pieces of 1 MiB. Consumers that read the same records share one "
        "request to the object store; 0 keeps nothing.",
    ),
)
