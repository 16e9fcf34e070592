"""Keys of authentication with SASL: of a node's listeners, and of logins, which nodes and clients share."""

from __future__ import annotations

from moldau.runtime.config.declare import HOUR_MS, KIB, PER_BROKER, boolean, integer, long, names, password, string

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

LOGIN_KEYS = (
    string(
        name="sasl.oauthbearer.token.endpoint.url",
        default=None,
        group="Security",
        doc="Where OAUTHBEARER tokens come from: an https: URL for the client credentials grant, or a file: URL.",
    ),
    string(
        name="sasl.oauthbearer.client.credentials.client.id",
        default=None,
        group="Security",
        doc="Client id for the client credentials grant.",
    ),
    password(
        name="sasl.oauthbearer.client.credentials.client.secret",
        default=None,
        group="Security",
        doc="Client secret for the client credentials grant.",
    ),
    boolean(
        name="sasl.oauthbearer.header.urlencode",
        default=False,
        group="Security",
        doc="Whether client id and secret are URL-encoded in the request for a token, as RFC 6749 wants it. Issuers "
        "that do not follow it take them as they are (KIP-1025).",
    ),
    string(
        name="sasl.oauthbearer.scope",
        default=None,
        group="Security",
        doc="Scope that the client credentials grant asks for.",
    ),
    password(
        name="sasl.oauthbearer.token",
        default=None,
        group="Security",
        is_own=True,
        takes_function=True,
        doc="An OAUTHBEARER token, instead of an endpoint; clients in Python may pass a function that returns one.",
    ),
)
"""How this end authenticates itself, besides the JAAS text."""

SASL_KEYS = (
    names(
        name="sasl.enabled.mechanisms",
        default=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        group="Security",
        dynamic=PER_BROKER,
        is_own=True,
        choices=_MECHANISMS,
        doc="SASL mechanisms that are offered.",
    ),
    string(
        name="sasl.mechanism.inter.broker.protocol",
        default="SCRAM-SHA-256",
        group="Security",
        is_own=True,
        choices=_MECHANISMS,
        doc="SASL mechanism between brokers.",
    ),
    string(
        name="sasl.mechanism.controller.protocol",
        default="SCRAM-SHA-256",
        group="Security",
        is_own=True,
        choices=_MECHANISMS,
        doc="SASL mechanism between brokers and controllers, and among controllers.",
    ),
    password(
        name="sasl.jaas.config",
        default=None,
        group="Security",
        dynamic=PER_BROKER,
        doc="Login of this node, and users of PLAIN, in the JAAS form that Kafka uses. "
        "listener.name.<listener>.<mechanism>.sasl.jaas.config is that of one listener and mechanism.",
    ),
    integer(
        name="sasl.server.max.receive.size",
        default=512 * KIB,
        group="Security",
        minimum=1,
        doc="Greatest size of a request before authentication.",
    ),
    password(
        name="sasl.scram.bootstrap.credentials",
        default=None,
        group="Security",
        is_own=True,
        doc="First SCRAM credentials of a new cluster, in the form of kafka-storage --add-scram: "
        "SCRAM-SHA-256=[name=admin,password=...];SCRAM-SHA-512=[...]. The first active controller writes them into the "
        "metadata log; nodes accept them until they know the metadata.",
    ),
    password(
        name="sasl.scram.decoy.secret",
        default=None,
        group="Security",
        is_own=True,
        doc="Secret from which brokers derive the salts that unknown users are shown; the same on all brokers, so that "
        "their answers agree. Without it each broker draws one at its start.",
    ),
    string(
        name="sasl.oauthbearer.jwks.endpoint.url",
        default=None,
        group="Security",
        doc="Where the keys that sign tokens come from: a file: or https: URL.",
    ),
    long(
        name="sasl.oauthbearer.jwks.endpoint.refresh.ms",
        default=HOUR_MS,
        group="Security",
        minimum=1,
        doc="Age at which the keys that sign tokens are read again, in milliseconds.",
    ),
    long(
        name="sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        default=1000,
        group="Security",
        is_own=True,
        minimum=1,
        doc="Time between two attempts to read the keys, also those that a token with an unknown key causes.",
    ),
    names(
        name="sasl.oauthbearer.expected.audience",
        default=None,
        group="Security",
        doc="Audiences of which a token must have one.",
    ),
    string(
        name="sasl.oauthbearer.expected.issuer",
        default=None,
        group="Security",
        doc="Issuer that a token must have.",
    ),
    names(
        name="sasl.oauthbearer.required.scopes",
        default=(),
        group="Security",
        is_own=True,
        doc="Scopes all of which a token must have.",
    ),
    boolean(
        name="sasl.oauthbearer.unsecured.tokens.enable",
        default=False,
        group="Security",
        is_own=True,
        doc="Whether tokens without a signature are accepted. Any client can make one: for tests only.",
    ),
    string(
        name="sasl.oauthbearer.scope.claim.name",
        default="scope",
        group="Security",
        doc="Claim that holds the scope.",
    ),
    string(
        name="sasl.oauthbearer.sub.claim.name",
        default="sub",
        group="Security",
        doc="Claim that holds the principal.",
    ),
    integer(
        name="sasl.oauthbearer.clock.skew.seconds",
        default=30,
        group="Security",
        minimum=0,
        doc="Tolerance for the clocks of issuer and broker, in seconds.",
    ),
    *LOGIN_KEYS,
)

CLIENT_SASL_KEYS = (
    string(
        name="sasl.mechanism",
        default="",
        group="Security",
        is_own=True,
        choices=("", *_MECHANISMS),
        doc="SASL mechanism; must be set with security.protocol SASL_PLAINTEXT or SASL_SSL.",
    ),
    string(name="sasl.username", default=None, group="Security", is_own=True, doc="User of PLAIN and SCRAM."),
    password(
        name="sasl.password",
        default=None,
        group="Security",
        is_own=True,
        doc="Password of the user of PLAIN and SCRAM.",
    ),
    password(
        name="sasl.jaas.config",
        default=None,
        group="Security",
        doc="Login in the JAAS form that Kafka uses, instead of sasl.username and sasl.password.",
    ),
    *LOGIN_KEYS,
)
