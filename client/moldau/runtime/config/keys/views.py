"""Keys of what a node shows to people beside its metrics: traces and the web console."""

from __future__ import annotations

from moldau.runtime.config.declare import boolean, double, integer, password, string

VIEW_KEYS = (
    string(
        name="otel.traces.endpoint",
        default=None,
        group="Node",
        is_own=True,
        doc=(
            "Address of an OpenTelemetry collector, such as http://127.0.0.1:4318/v1/traces, to which the node sends "
            "spans of slow requests and of drawn ones (OTLP over HTTP); none without it. Needs the extra traces."
        ),
    ),
    integer(
        name="otel.traces.slow.ms",
        default=500,
        group="Node",
        is_own=True,
        minimum=1,
        doc=(
            "Requests whose answer took so many milliseconds become spans. The time that a Fetch waits for records "
            "does not count."
        ),
    ),
    double(
        name="otel.traces.sample.ratio",
        default=0.0,
        group="Node",
        is_own=True,
        minimum=0,
        maximum=1,
        doc="Share of all requests, from 0 to 1, that become spans although they are not slow.",
    ),
    string(
        name="console.listener",
        default=None,
        group="Node",
        is_own=True,
        doc=(
            "Address host:port where a broker's node serves the web console, as a process of its own; none without it. "
            "Needs the extra console. Of the processes of broker.processes, the first serves it."
        ),
    ),
    string(
        name="console.client.config",
        default=None,
        group="Node",
        is_own=True,
        doc=(
            "File with the client keys of the console's connections (security.protocol, trust store, login). Needed if "
            "each listener of the broker uses TLS. If it names no user of a SASL listener, each person signs in."
        ),
    ),
    boolean(
        name="console.read.only",
        default=True,
        group="Node",
        is_own=True,
        doc="Whether the console of console.listener refuses to send records.",
    ),
    string(
        name="console.ssl.keystore.location",
        default=None,
        group="Node",
        is_own=True,
        doc=(
            "File with a private key and its certificate chain, for HTTPS of the console; plain HTTP without "
            "it. A changed file is used for new connections after 5 s at most. It may be that of ssl.keystore.location."
        ),
    ),
    string(
        name="console.ssl.keystore.type",
        default="PEM",
        group="Node",
        is_own=True,
        choices=("PEM", "PKCS12"),
        doc="Format of the file of console.ssl.keystore.location.",
    ),
    password(
        name="console.ssl.keystore.password",
        default=None,
        group="Node",
        is_own=True,
        doc="Password of the console's key store, if it is of type PKCS12.",
    ),
    password(
        name="console.ssl.key.password",
        default=None,
        group="Node",
        is_own=True,
        doc="Password of the private key in the console's PEM file, if it is encrypted.",
    ),
    password(
        name="console.token",
        default=None,
        group="Node",
        is_own=True,
        doc="Secret of at least 16 characters that opens the console; needed unless console.listener is loopback.",
    ),
)
