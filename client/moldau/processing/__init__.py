"""Processing of consumed records: retry topics and dead letters; ``core`` holds the pure parts.

orders = RetryTopics("orders", [5_000, 60_000])
"""

from moldau.processing.core.retry_topics import Failure, RetryTopics, failure_of

__all__ = ["Failure", "RetryTopics", "failure_of"]
