"""Hand-written readers and writers of Produce and Fetch, the two APIs that carry the data.

The compiled codecs build an object for every struct. Here a request becomes a few tuples: a topic is the raw bytes
that came over the wire (its UTF-8 name, or the 16 bytes of its id in the versions that use ids), so that a server can
look it up in a dictionary without decoding it; records are memoryviews of the frame. A response becomes a list of
parts in which record bytes are only placeholders, whatever the caller uses for them (buffers, ranges of files): they
are never copied.

Both obey the same rules as the compiled codecs (every length checked, `DecodeError` and nothing else on bad input)
and are held equal to them by test.
"""

from moldau.protocol.hot.fetch import (
    FetchAnswerView,
    FetchedPartition,
    FetchPartitionResult,
    FetchPartitionView,
    FetchRequestView,
    read_fetch_answer,
    read_fetch_request,
    write_fetch_response,
)
from moldau.protocol.hot.fetch_request import write_follower_fetch
from moldau.protocol.hot.produce import (
    NodeEndpointResult,
    ProducePartitionResult,
    ProduceRequestView,
    read_produce_request,
    write_produce_response,
)

__all__ = [
    "FetchAnswerView",
    "FetchPartitionResult",
    "FetchPartitionView",
    "FetchRequestView",
    "FetchedPartition",
    "NodeEndpointResult",
    "ProducePartitionResult",
    "ProduceRequestView",
    "read_fetch_answer",
    "read_fetch_request",
    "read_produce_request",
    "write_fetch_response",
    "write_follower_fetch",
    "write_produce_response",
]
