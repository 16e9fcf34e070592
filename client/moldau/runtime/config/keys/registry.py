"""Keys of the schema registry's client, and of serializers that use a registry."""

from __future__ import annotations

from moldau.runtime.config.declaration import REQUIRED
from moldau.runtime.config.declare import SECOND_MS, boolean, integer, names, password, string
from moldau.runtime.config.keys.client import CLIENT_KEYS

REGISTRY_KEYS = (
    names(
        name="schema.registry.url",
        default=REQUIRED,
        group="Registry",
        doc="Addresses of the registry, http:// or https://. They are tried in turn until one answers.",
    ),
    password(
        name="basic.auth.user.info",
        default=None,
        group="Registry",
        doc="USER:PASSWORD for HTTP basic authentication.",
    ),
    password(
        name="bearer.auth.token",
        default=None,
        group="Registry",
        takes_function=True,
        doc="Token for HTTP bearer authentication. A program may give a function that returns the present token.",
    ),
    integer(
        name="request.timeout.ms",
        default=10 * SECOND_MS,
        group="Registry",
        is_own=True,
        minimum=1,
        doc="Time that one request to the registry may take.",
    ),
    integer(
        name="max.retries",
        default=3,
        group="Registry",
        minimum=0,
        maximum=100,
        doc="Repetitions of a request that failed for a passing reason: no answer, or status 408, 429 or 5xx.",
    ),
    integer(
        name="retries.wait.ms",
        default=SECOND_MS,
        group="Registry",
        minimum=0,
        doc="Wait before the first repetition; each further wait is twice as long.",
    ),
    integer(
        name="retries.max.wait.ms",
        default=20 * SECOND_MS,
        group="Registry",
        minimum=0,
        doc="Longest wait between two repetitions.",
    ),
    integer(
        name="cache.capacity",
        default=1000,
        group="Registry",
        minimum=16,
        doc="Schemas that the client keeps; the least recently used one gives way.",
    ),
    *(key for key in CLIENT_KEYS if key.name.startswith("ssl.")),
)

SERIALIZER_KEYS = (
    boolean(
        name="auto.register.schemas",
        default=True,
        group="Serializer",
        doc="Registers a schema under its subject before its first use. False: it must have been registered.",
    ),
    boolean(
        name="use.latest.version",
        default=False,
        group="Serializer",
        doc="Writes with the latest schema of the subject, whatever schema the serializer was made with.",
    ),
    boolean(
        name="normalize.schemas",
        default=False,
        group="Serializer",
        doc="Lets the registry treat schemas that differ in form only as equal.",
    ),
    string(
        name="subject.name.strategy",
        default="TopicNameStrategy",
        group="Serializer",
        choices=("TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy"),
        doc="Subject of a schema: TOPIC-key or TOPIC-value, the record's full name, or TOPIC-RECORD.",
    ),
)
