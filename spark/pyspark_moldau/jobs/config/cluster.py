"""The cluster of a job: the keys of its clients, and a check of its topics before Spark starts.

The keys stand in the tables ``cluster`` and ``kafka`` of the job's file. Keys from elsewhere (``--command-config``)
count where the file has none. Values may be references to providers, such as ``${env:PASSWORD}``, which are resolved in
the process that starts the job; no error, log or ``repr`` shows the resolved text.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.runtime.config import CONSUMER_CONFIG, PRODUCER_CONFIG, ConfigError
from moldau.runtime.config.providers import resolve
from moldau.runtime.config.tls import CA_LOCATION
from pyspark_moldau.client_options import (
    OBEYED,
    PREFIX,
    WITHOUT_EFFECT,
    OptionError,
    parse_client,
)
from pyspark_moldau.sink.core.sink_options import HARMLESS, parse_sink_options
from pyspark_moldau.wire.cluster import MISSING_TOPIC
from pyspark_moldau.wire.reach import reached

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark_moldau.jobs.config.settings import Section

TABLES: Final = ("cluster", "kafka")
SERVERS: Final = "bootstrap.servers"
ISOLATION: Final = "isolation.level"
FILES: Final = ("ssl.truststore.location", "ssl.keystore.location", CA_LOCATION)
"""Keys whose values are relative to the job's file."""
_OF_CONSUMERS: Final = frozenset((*OBEYED, *WITHOUT_EFFECT, *CONSUMER_CONFIG.keys))
_OF_PRODUCERS: Final = frozenset((*PRODUCER_CONFIG.keys, *HARMLESS))
_EXACTLY_ONCE: Final = {"deliveryGuarantee": "exactly-once"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterKeys:
    """The keys of Kafka's clients for one job; ``keys`` holds passwords and is not part of ``repr``."""

    servers: str
    keys: Mapping[str, str] = field(repr=False)

    def source_options(self) -> dict[str, str]:
        """Returns the options of Spark sources: the keys that no producer alone knows."""
        return {
            f"{PREFIX}{key}": value
            for key, value in self.keys.items()
            if key in _OF_CONSUMERS or key not in _OF_PRODUCERS
        }

    def sink_options(self) -> dict[str, str]:
        """Returns the options of Spark sinks: the keys that no consumer alone knows."""
        return {
            f"{PREFIX}{key}": value
            for key, value in self.keys.items()
            if key in _OF_PRODUCERS or key not in _OF_CONSUMERS
        }


def cluster_of(root: Section, folder: Path, elsewhere: Mapping[str, str]) -> ClusterKeys:
    """Takes the tables ``cluster`` and ``kafka`` of a job's file.

    ``elsewhere`` holds resolved keys that count where the file has none.

    Raises:
        JobConfigError: A key is unknown, or a value is wrong; the text shows no secret.
    """
    given: dict[str, str] = {}
    for name in TABLES:
        for key, value in root.dotted(name).items():
            if key in given:
                raise root.error(f"[{name}] {key}", f"is in [{TABLES[0]}] too; keep one of them")
            given[key] = value
    try:
        resolved = {key: str(value) for key, value in resolve(given, os.environ).items()}
    except ConfigError as error:
        raise root.error(TABLES[0], "; ".join(error.problems)) from error
    for key, value in resolved.items():
        if key in FILES and value:
            resolved[key] = str(folder / value)
    keys = {**elsewhere, **resolved}
    if not keys.get(SERVERS):
        raise root.error(TABLES[0], f'"{SERVERS}" must be given, as "host:port,..."')
    known = sorted(_OF_CONSUMERS | _OF_PRODUCERS)
    for key in keys:
        near = [] if key in known else difflib.get_close_matches(key, known, 1)
        if near:
            raise root.error(TABLES[0], f"{key}: unknown key of a client; did you mean {near[0]}?")
    found = ClusterKeys(servers=keys[SERVERS], keys=keys)
    try:
        parse_sink_options(found.sink_options() | _EXACTLY_ONCE, streaming=True)
        parse_client(found.source_options())
    except OptionError as error:
        raise root.error(TABLES[0], str(error).removeprefix(PREFIX)) from error
    return found


def check_topics(root: Section, cluster: ClusterKeys, topics: Mapping[str, Sequence[str]], *, wait_ms: int) -> None:
    """Checks that the topics of a job exist and that its principal may see them.

    ``topics`` maps a place in the file, such as ``[source] topics``, to the topics that it names. A topic without a
    leader passes, because the job waits for one. New topics may be unknown to some brokers for a moment, so a topic is
    missing only if no broker knows it.

    Raises:
        JobConfigError: A topic does not exist.
        OptionError: The login was refused, or the principal may not describe a topic.
        ReadTimeoutError: No broker answered for ``default.api.timeout.ms``, or for ``wait_ms`` if that is not given.
    """
    client = parse_client(cluster.source_options())
    asked = reached(client, client.reach_timeout_ms or wait_ms)
    names = sorted({name for each in topics.values() for name in each})
    try:
        errors = asked.retry("look up the topics of the job", lambda: asked.topic_errors(names))
    finally:
        asked.forget()
    for place, wanted in topics.items():
        for name in wanted:
            code = errors.get(name)
            if code in MISSING_TOPIC:
                raise root.error(
                    place,
                    f"topic {name} does not exist on {cluster.servers}; create it (moldau topics create {name}), or "
                    "correct its name",
                )
            if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                right = "READ" if place.endswith("topics") else "WRITE"
                raise OptionError(
                    f"{place}: this client may not see topic {name} ({code.name}); grant its principal {right} on it"
                )
