"""Keys of tiered storage (KIP-405)."""

from __future__ import annotations

from moldau.runtime.config.declare import boolean, password, string

REMOTE_STORE_KEYS = (
    string(
        name="remote.log.storage.url",
        default=None,
        group="Tiered storage",
        is_own=True,
        doc="The object store of remote segments: `file:///path` for a directory that exists and that all brokers "
        "share, or `s3://bucket/prefix` for a bucket of an S3-compatible service, which needs the extra `s3`. All "
        "brokers of a cluster have the same; several clusters can share one.",
    ),
    string(
        name="remote.log.storage.s3.endpoint.url",
        default=None,
        group="Tiered storage",
        is_own=True,
        doc="Address of an S3-compatible service, such as https://s3.example.com:9000; without it that of the "
        "variables AWS_ENDPOINT_URL_S3 and AWS_ENDPOINT_URL, else that of AWS in the region.",
    ),
    string(
        name="remote.log.storage.s3.region",
        default=None,
        group="Tiered storage",
        is_own=True,
        doc="Region of the bucket; without it that of the variables AWS_REGION and AWS_DEFAULT_REGION, else us-east-1.",
    ),
    string(
        name="remote.log.storage.s3.access.key.id",
        default=None,
        group="Tiered storage",
        is_own=True,
        doc="Id of the access key. Without it the broker takes AWS's variables (`AWS_ACCESS_KEY_ID` ...), or the role "
        "of its pod, container or instance.",
    ),
    password(
        name="remote.log.storage.s3.secret.access.key",
        default=None,
        group="Tiered storage",
        is_own=True,
        doc="Secret of the access key.",
    ),
    boolean(
        name="remote.log.storage.s3.path.style.access",
        default=False,
        group="Tiered storage",
        is_own=True,
        doc="Whether the bucket is the first part of the path, as many services other than AWS want it, instead of the "
        "first part of the host name. With an IP address it always is.",
    ),
    string(
        name="remote.log.storage.s3.truststore.location",
        default=None,
        group="Tiered storage",
        is_own=True,
        doc="PEM file with certificates that are trusted for the service's TLS, besides those of the system.",
    ),
)
