"""Decodes values in Confluent's wire format with the schemas of a registry, where the extra ``jobs`` is installed."""

from __future__ import annotations

import importlib.util
import io
import time
from typing import Final

import trio

from moldau.runtime.config.urls import split_login
from moldau_cli.errors import UsageError
from moldau_cli.records.core.marks import marked
from moldau_cli.records.core.values import json_text

VIEW_CHARS_MAX: Final = 256 * 1024
SLOW_S: Final = 1.0
"""A registry that fails after so long is silent: each value of a page would wait for it, and the page had no answer."""
SILENT_S: Final = 30.0
"""For so long a silent registry is not asked again."""
_NEEDED = ("fastavro", "pyarrow")


class AvroViews:
    """Shows Avro values as JSON. The registry's schemas are kept, so each is asked for once."""

    def __init__(self, registry: str) -> None:
        """Takes the registry's URL, which may have a login.

        Raises:
            UsageError: the decoder is not installed, or the URL is none.
        """
        absent = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if absent:
            raise UsageError(f"--registry: {' and '.join(absent)} not installed; run: pip install 'moldau[jobs]'")
        from pyspark_moldau.jobs.payloads.avro_codec import Registry

        try:
            address, login = split_login(registry.rstrip("/"))
        except ValueError as error:
            raise UsageError(f"--registry: {error}") from error
        self._registry = Registry(address, login)
        self._turn = trio.CapacityLimiter(1)
        self._given: set[int] = set()  # the ids whose schemas the registry has given; it keeps them
        self._trouble, self._silent_until_s = "", 0.0

    async def view(self, value: bytes) -> str | None:
        """Returns the value as indented JSON with the marks of ``moldau consume``, or why it cannot be decoded.

        A value without a schema id in front gives None.
        """
        if len(value) < 5 or value[0] != 0:
            return None
        return await trio.to_thread.run_sync(self._decoded, value, limiter=self._turn)

    def _decoded(self, value: bytes) -> str:
        import fastavro

        from moldau.serialization.core.avro_depth import DepthCheck
        from pyspark_moldau.jobs.errors import JobError, PoisonError
        from pyspark_moldau.jobs.payloads.framing import split_frame

        began_s = time.monotonic()
        try:
            schema_id, body = split_frame(value)
            if schema_id not in self._given and began_s < self._silent_until_s:
                return self._trouble
            schema = self._registry.schema(schema_id)
        except (JobError, PoisonError) as error:
            reason, now_s = f"not decoded: {error}", time.monotonic()
            if now_s - began_s >= SLOW_S:
                self._trouble, self._silent_until_s = reason, now_s + SILENT_S
            return reason
        self._given.add(schema_id)
        try:
            DepthCheck(schema).check_bytes(body)
            found = marked(fastavro.schemaless_reader(io.BytesIO(body), schema, None), {})
            return json_text(found, indent=2, ensure_ascii=False)[:VIEW_CHARS_MAX]
        except (ValueError, TypeError, EOFError, LookupError, ArithmeticError, RecursionError) as error:
            return f"not decoded: schema {schema_id} does not fit the value ({error!r:.200})"
