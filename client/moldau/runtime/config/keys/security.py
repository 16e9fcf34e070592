"""Keys of authorization and TLS on the broker."""

from __future__ import annotations

from moldau.runtime.config.declare import PER_BROKER, boolean, long, names, password, string

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

SECURITY_KEYS = (
    string(
        name="authorizer.class.name",
        default="",
        group="Security",
        choices=("", "StandardAuthorizer", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        doc="Switches ACLs on: StandardAuthorizer (also with Kafka's package name); empty for none.",
    ),
    string(
        name="super.users",
        default="",
        group="Security",
        doc="Principals that may do anything, separated by semicolons: User:alice;User:bob.",
    ),
    boolean(
        name="allow.everyone.if.no.acl.found",
        default=False,
        group="Security",
        doc="Whether a resource without ACLs is open to all.",
    ),
    password(
        name="delegation.token.secret.key",
        default=None,
        group="Security",
        doc="Secret from which the secrets of delegation tokens are derived, the same on all brokers and controllers; "
        "without it there are no tokens. Another key makes all tokens invalid.",
    ),
    long(
        name="delegation.token.max.lifetime.ms",
        default=7 * DAY_MS,
        group="Security",
        minimum=1,
        doc="Greatest life of a delegation token, renewals included.",
    ),
    long(
        name="delegation.token.expiry.time.ms",
        default=DAY_MS,
        group="Security",
        minimum=1,
        doc="Time until a delegation token must be renewed.",
    ),
    long(
        name="delegation.token.expiry.check.interval.ms",
        default=HOUR_MS,
        group="Security",
        minimum=1,
        doc="How often the active controller removes expired tokens, which no longer open a session in the meantime.",
    ),
    string(
        name="ssl.client.auth",
        default="none",
        group="Security",
        dynamic=PER_BROKER,
        choices=("required", "requested", "none"),
        doc="Whether clients must show a certificate. A listener with SASL_SSL has only a value of its own, "
        "listener.name.NAME.ssl.client.auth (KIP-684).",
    ),
    string(
        name="ssl.keystore.type",
        default="PEM",
        group="Security",
        dynamic=PER_BROKER,
        is_own=True,
        choices=("PEM", "PKCS12"),
        ignores_case=True,
        doc="Format of the key store's file.",
    ),
    password(
        name="ssl.keystore.password",
        default=None,
        group="Security",
        dynamic=PER_BROKER,
        doc="Password of a key store of type PKCS12.",
    ),
    string(
        name="ssl.keystore.location",
        default=None,
        group="Security",
        dynamic=PER_BROKER,
        doc="File with the private key and its certificate chain, of the type that ssl.keystore.type names.",
    ),
    password(
        name="ssl.keystore.key",
        default=None,
        group="Security",
        dynamic=PER_BROKER,
        doc="Private key as PEM text, instead of a file.",
    ),
    password(
        name="ssl.keystore.certificate.chain",
        default=None,
        group="Security",
        dynamic=PER_BROKER,
        doc="Certificate chain as PEM text, instead of a file.",
    ),
    password(
        name="ssl.key.password",
        default=None,
        group="Security",
        dynamic=PER_BROKER,
        doc="Password of the private key.",
    ),
    string(
        name="ssl.truststore.type",
        default="PEM",
        group="Security",
        dynamic=PER_BROKER,
        is_own=True,
        choices=("PEM", "PKCS12"),
        ignores_case=True,
        doc="Format of the trust store's file.",
    ),
    password(
        name="ssl.truststore.password",
        default=None,
        group="Security",
        dynamic=PER_BROKER,
        doc="Password of a trust store of type PKCS12.",
    ),
    string(
        name="ssl.truststore.location",
        default=None,
        group="Security",
        dynamic=PER_BROKER,
        doc="File with the trusted certificates, of the type that ssl.truststore.type names.",
    ),
    password(
        name="ssl.truststore.certificates",
        default=None,
        group="Security",
        dynamic=PER_BROKER,
        doc="Trusted certificates as PEM text, instead of a file.",
    ),
    names(
        name="ssl.enabled.protocols",
        default=("TLSv1.2", "TLSv1.3"),
        group="Security",
        dynamic=PER_BROKER,
        choices=("TLSv1.2", "TLSv1.3"),
        doc="TLS versions that are allowed.",
    ),
    string(
        name="ssl.protocol",
        default="TLSv1.3",
        group="Security",
        dynamic=PER_BROKER,
        choices=("TLSv1.2", "TLSv1.3", "TLS"),
        doc="Newest TLS version that the node offers to other nodes; TLS means TLSv1.3. Listeners serve all versions "
        "in ssl.enabled.protocols.",
    ),
    names(
        name="ssl.cipher.suites",
        default=(),
        group="Security",
        dynamic=PER_BROKER,
        doc="Cipher suites, in Kafka's (IANA's) or OpenSSL's names; empty leaves the choice to OpenSSL. Suites of TLS "
        "1.3 are named together or not at all, which disables TLS 1.3.",
    ),
    string(
        name="ssl.endpoint.identification.algorithm",
        default="https",
        group="Security",
        choices=("https", ""),
        ignores_case=True,
        doc="How the host name of a peer is checked; empty for no check.",
    ),
    string(
        name="ssl.principal.mapping.rules",
        default="DEFAULT",
        group="Security",
        doc="Rules that turn a certificate's name into a principal: RULE:pattern/replacement/[LU] and DEFAULT, "
        "separated by commas; the first that fits the whole name decides.",
    ),
)
