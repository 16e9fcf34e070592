"""Serializers and interceptors of a producer, between ``send`` and the intake of bytes.

Interceptors see a record before it is serialized, and later its outcome. A serializer that needs an answer of a schema
registry raises ``SchemaNeeded``: ``send`` fetches the answer, and ``append`` refuses the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.cluster import arguments
from moldau.cluster.interceptors import on_acknowledgement, on_send
from moldau.protocol.errors import KafkaError
from moldau.serialization.core.records import unregistered
from moldau.serialization.core.values import RegistryError, SchemaNeeded
from moldau.serialization.lookups import SchemaLookups

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.cluster.interceptors import ProducerInterceptor
    from moldau.producer.core.output import OutputRecord
    from moldau.producer.delivery import Delivery
    from moldau.serialization.core.records import RecordEncoder


class Encoding:
    """The serializers and interceptors of one producer."""

    def __init__(
        self, encoder: RecordEncoder | None, interceptors: tuple[ProducerInterceptor, ...], max_block_ms: float
    ) -> None:
        """Without an ``encoder``, keys and values are bytes. ``max_block_ms`` bounds a wait for a schema registry."""
        self._encoder = encoder
        self._interceptors = interceptors
        self._lookups = SchemaLookups("max.block.ms", max_block_ms)

    async def send(self, record: OutputRecord[Any, Any], send_bytes: Callable[..., Awaitable[Delivery]]) -> Delivery:
        """Sends a record with ``send_bytes`` (``Producer.send_bytes``) after interceptors and serializers."""
        if not self._interceptors:
            return await self._send_encoded(record, send_bytes)
        headers = tuple(arguments.headers("send", record.headers))
        record = on_send(self._interceptors, record._replace(headers=headers))
        try:
            delivery = await self._send_encoded(record, send_bytes)
        except BaseException as error:  # a cancellation too: the record is not sent then
            on_acknowledgement(self._interceptors, record, None, error)
            raise
        self.watch(delivery, record)
        return delivery

    async def _send_encoded(
        self, record: OutputRecord[Any, Any], send_bytes: Callable[..., Awaitable[Delivery]]
    ) -> Delivery:
        topic, value, key, given, partition, timestamp = record
        headers = arguments.headers("send", given)
        while self._encoder is not None:
            try:
                key, value = self._encoder.encode(topic, key, value, headers)
                break
            except SchemaNeeded as needed:
                await self.fetch_schema(topic, needed)
        return await send_bytes(topic, value, key, headers=headers, partition=partition, timestamp=timestamp)

    def append(self, record: OutputRecord[Any, Any], append_bytes: Callable[..., Delivery]) -> Delivery:
        """Appends a record with ``append_bytes`` (``RecordIntake.append``) after interceptors and serializers."""
        record = on_send(self._interceptors, record)
        try:
            delivery = self._append_encoded(record, append_bytes)
        except Exception as error:
            on_acknowledgement(self._interceptors, record, None, error)
            raise
        self.watch(delivery, record)
        return delivery

    def _append_encoded(self, record: OutputRecord[Any, Any], append_bytes: Callable[..., Delivery]) -> Delivery:
        topic, value, key, headers, partition, timestamp = record
        if self._encoder is not None:
            try:
                key, value = self._encoder.encode(topic, key, value, headers)
            except SchemaNeeded as needed:
                raise LookupError(f"{topic}: the schema's id is not known yet; await send for one record") from needed
        return append_bytes(topic, value, key, headers=headers, partition=partition, timestamp=timestamp)

    def watch(self, delivery: Delivery, record: OutputRecord[Any, Any]) -> None:
        """Reports the outcome of a record to the interceptors, now or when it is known."""
        batch = delivery._batch
        if batch.is_settled:
            self._report(delivery, record)
            return
        if batch.watchers is None:
            batch.watchers = []
        batch.watchers.append(lambda: self._report(delivery, record))

    def _report(self, delivery: Delivery, record: OutputRecord[Any, Any]) -> None:
        try:
            metadata = delivery.result()
        except KafkaError as error:
            on_acknowledgement(self._interceptors, record, None, error)
        else:
            on_acknowledgement(self._interceptors, record, metadata, None)

    async def fetch_schema(self, topic: str, needed: SchemaNeeded) -> None:
        """Fetches from a schema registry what a serializer needs for a record of ``topic``.

        Raises:
            SerializationError: the registry refuses the schema.
            RegistryError: the registry does not answer within ``max.block.ms``.
        """
        try:
            await self._lookups.resolve(needed)
        except RegistryError as error:
            if error.is_about_schema:
                raise unregistered(topic, error) from error
            raise
