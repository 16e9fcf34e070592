"""Processing of consumed records: many at a time with back-pressure, retry topics and dead letters.

    async def bill(record): ...

    await process(consumer, bill, concurrency=20, retries=RetryTopics("orders", [5_000, 60_000]), producer=producer)

``process`` is for trio; ``moldau.aio.process`` and ``moldau.blocking.process`` are its other faces. ``core`` holds the
pure parts.
"""

from moldau.processing.core.retry_topics import Failure, RetryTopics, failure_of
from moldau.processing.native import process

__all__ = ["Failure", "RetryTopics", "failure_of", "process"]
