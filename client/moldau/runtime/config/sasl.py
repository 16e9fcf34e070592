"""Typed values of the ``sasl.`` keys: of a node's listeners, of its own login to others, and of clients. Pure."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from moldau.runtime.config.declaration import NOT_UTF_8, ConfigError, ConfigSchema
from moldau.runtime.config.listeners import controller_listener_names, inter_broker_listener_name, key_of_listener
from moldau.runtime.config.tls import tls_problems, tls_settings
from moldau.runtime.sasl.core.jaas import LoginModule, module_for, parse_jaas
from moldau.runtime.sasl.core.principals import MappingRules
from moldau.values import is_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.runtime.config.declaration import Config, Value
    from moldau.runtime.config.tls import TlsSettings

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SCRAM_MECHANISMS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""Numbers of KIP-554."""

_JAAS: Final = "sasl.jaas.config"
_ENTRY: Final = re.compile(r"(SCRAM-SHA-(?:256|512))=\[(.*?)\]\s*(?:;\s*|$)")
_FIELD: Final = re.compile(r'\s*(name|password|salt|saltedpassword|iterations)=("[^"]*"|[^,\]]*)(?:,|$)')


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """A listener's demands on tokens (OAUTHBEARER)."""

    jwks_url: str | None
    issuer: str | None
    audiences: tuple[str, ...]
    required_scopes: tuple[str, ...]
    scope_claim: str
    principal_claim: str
    clock_skew_ms: int
    refresh_ms: int
    retry_ms: int
    accepts_unsecured: bool
    jwks_tls: TlsSettings | None = None
    """TLS towards the address of the keys; None for the trust of the system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSasl:
    """The demands of a listener with SASL. Passwords never show in ``repr``."""

    listener_name: str
    mechanisms: tuple[str, ...]
    plain_users: Mapping[str, str] = field(repr=False)
    reauthentication_ms: Mapping[str, int]  # by mechanism
    failure_delay_ms: int
    receive_bytes_max: int
    decoy_secret: bytes | None = field(repr=False)
    tokens: TokenRules


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSettings:
    """How this end authenticates itself. Secrets never show in ``repr``."""

    mechanism: str
    user: str = ""
    password: str = field(default="", repr=False)
    is_token: bool = False
    """Whether user and password are id and secret of a delegation token."""
    token: str | Callable[[], object] | None = field(default=None, repr=False)
    token_url: str | None = None
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    encodes_credentials: bool = False
    """Whether client id and secret are URL-encoded in the header of the request for a token."""
    scope: str = ""
    token_tls: TlsSettings | None = None
    """TLS towards the token endpoint; None for the trust of the system."""
    extensions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapCredential:
    """A SCRAM credential in the form of ``kafka-storage --add-scram``: a password, or a salted one with its salt."""

    mechanism: str
    user: str
    password: str | None = field(repr=False)
    salt: bytes | None = field(default=None, repr=False)
    salted_password: bytes | None = field(default=None, repr=False)
    iterations: int


def _names(listener_name: str, mechanism: str | None, key: str) -> list[str]:
    own = [key_of_listener(listener_name, f"{mechanism.lower()}.{key}")] if mechanism is not None else []
    return [*own, key_of_listener(listener_name, key), key]


def _value(config: Config, listener_name: str | None, mechanism: str | None, key: str) -> tuple[str, Value]:
    """Returns the name that is set, and its value: of mechanism and listener, of the listener, or of the node."""
    if listener_name is not None:
        for name in _names(listener_name, mechanism, key):
            if name in config and (name == key or config.is_set(name)):
                return name, config.get(name)
    return key, config.get(key)


def _text(config: Config, listener_name: str | None, mechanism: str | None, key: str) -> str:
    value = _value(config, listener_name, mechanism, key)[1]
    return value if isinstance(value, str) else ""


def _number(config: Config, listener_name: str | None, mechanism: str | None, key: str) -> int:
    value = _value(config, listener_name, mechanism, key)[1]
    assert isinstance(value, int), key
    return value


def _list(config: Config, listener_name: str | None, mechanism: str | None, key: str) -> tuple[str, ...]:
    value = _value(config, listener_name, mechanism, key)[1]
    return value if isinstance(value, tuple) else ()


def _module(config: Config, listener_name: str | None, mechanism: str) -> tuple[str, LoginModule | None]:
    """Returns the key and the login module for a mechanism.

    Raises:
        ConfigError: the text is malformed.
    """
    name, value = _value(config, listener_name, mechanism, _JAAS)
    if not isinstance(value, str) or not value.strip():
        return name, None
    try:
        return name, module_for(parse_jaas(value), mechanism)
    except ValueError as error:
        raise ConfigError([f"{name} = [hidden]: {error}"]) from None


# --- servers


def listener_sasl(config: Config, listener_name: str) -> ListenerSasl:
    """Returns what a listener with SASL demands.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    mechanisms = _list(config, listener_name, None, "sasl.enabled.mechanisms")
    if not mechanisms:
        raise ConfigError([f"sasl.enabled.mechanisms: listener {listener_name} uses SASL and needs a mechanism"])
    users: dict[str, str] = {}
    if "PLAIN" in mechanisms:
        module = _module(config, listener_name, "PLAIN")[1]
        users = module.users() if module is not None else {}
    tokens = _token_rules(config, listener_name)
    if "OAUTHBEARER" in mechanisms and tokens.jwks_url is None and not tokens.accepts_unsecured:
        raise ConfigError(
            [
                f"sasl.oauthbearer.jwks.endpoint.url: listener {listener_name} offers OAUTHBEARER and needs the keys "
                "that sign tokens: a file: or https: URL"
            ]
        )
    secret = _text(config, listener_name, None, "sasl.scram.decoy.secret")
    return ListenerSasl(
        listener_name=listener_name,
        mechanisms=tuple(dict.fromkeys(mechanisms)),
        plain_users=users,
        reauthentication_ms={
            mechanism: _number(config, listener_name, mechanism, "connections.max.reauth.ms")
            for mechanism in mechanisms
        },
        failure_delay_ms=config.get_int("connection.failed.authentication.delay.ms"),
        receive_bytes_max=_number(config, listener_name, None, "sasl.server.max.receive.size"),
        decoy_secret=secret.encode() if secret else None,
        tokens=tokens,
    )


def _token_rules(config: Config, listener_name: str) -> TokenRules:
    def key(name: str) -> str:
        return f"sasl.oauthbearer.{name}"

    def text(name: str) -> str:
        return _text(config, listener_name, "OAUTHBEARER", key(name))

    def number(name: str) -> int:
        return _number(config, listener_name, "OAUTHBEARER", key(name))

    url = text("jwks.endpoint.url")
    _check_url(_value(config, listener_name, "OAUTHBEARER", key("jwks.endpoint.url"))[0], url)
    name, module = _module(config, listener_name, "OAUTHBEARER") if url.startswith("https:") else ("", None)
    return TokenRules(
        jwks_url=url or None,
        issuer=text("expected.issuer") or None,
        audiences=_list(config, listener_name, "OAUTHBEARER", key("expected.audience")),
        required_scopes=_list(config, listener_name, "OAUTHBEARER", key("required.scopes")),
        scope_claim=text("scope.claim.name"),
        principal_claim=text("sub.claim.name"),
        clock_skew_ms=1000 * number("clock.skew.seconds"),
        refresh_ms=number("jwks.endpoint.refresh.ms"),
        retry_ms=number("jwks.endpoint.retry.backoff.ms"),
        accepts_unsecured=_value(config, listener_name, "OAUTHBEARER", key("unsecured.tokens.enable"))[1] is True,
        jwks_tls=None if module is None else _endpoint_tls(name, module.options),
    )


def _endpoint_tls(name: str, options: Mapping[str, str]) -> TlsSettings | None:
    """Returns the TLS of requests for tokens or keys: the ``ssl.`` options of the login module, as in Kafka.

    Options that are no keys of a client are ignored, as all others that nothing reads.

    Raises:
        ConfigError: the options cannot be used.
    """
    from moldau.runtime.config.keys.client import CLIENT_KEYS

    schema = ConfigSchema.of("login module", [key for key in CLIENT_KEYS if key.name.startswith("ssl.")])
    given = {key: value for key, value in options.items() if key in schema.keys}
    if not given:
        return None
    try:
        settings = replace(tls_settings(schema.parse(given)), prefix=f"{name}: ")
    except ConfigError as error:
        raise ConfigError([f"{name}: {problem}" for problem in error.problems]) from None
    if problems := tls_problems(settings):
        raise ConfigError(problems)
    return settings


def _check_url(key: str, url: str) -> None:
    """Checks where tokens or keys come from; empty is nowhere.

    Raises:
        ConfigError: nothing can be read there. The text does not show a login.
    """
    if not url:
        return
    from urllib.parse import unquote

    from moldau.runtime.config.urls import split_url

    shown = key if "@" in url else f"{key} = {url!r}"
    if not url.startswith(("file:", "https://", "http://")):
        raise ConfigError([f"{shown}: must be a file: or https: URL"])
    try:
        parts = split_url(url)
    except ValueError as error:
        raise ConfigError([f"{shown}: is no URL; {error}"]) from error
    is_file = parts.scheme == "file"
    if "@" in parts.netloc:
        raise ConfigError([f"{shown}: must have no login; for a token endpoint, client id and secret are keys"])
    if is_file and (parts.netloc not in ("", "localhost") or not parts.path or "\0" in unquote(parts.path)):
        raise ConfigError([f"{shown}: must be like file:///path"])
    if not is_file and not parts.hostname:
        raise ConfigError([f"{shown}: names no host"])


def principal_rules(config: Config, listener_name: str) -> MappingRules:
    """Returns the rules that turn a certificate's name into a principal.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    name, value = _value(config, listener_name, None, "ssl.principal.mapping.rules")
    try:
        return MappingRules(str(value))
    except ValueError as error:
        raise ConfigError([f"{name}: {error}"]) from None


# --- logins


def node_login(config: Config, listener_name: str, mechanism: str, mechanism_key: str) -> LoginSettings:
    """Returns how a node authenticates itself to a listener of other nodes: by the JAAS text of its own listener.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    name, module = _module(config, listener_name, mechanism)
    if module is None:
        raise ConfigError(
            [f"{name}: holds no login module for {mechanism} ({mechanism_key}), as listener {listener_name} needs it"]
        )
    return _from_module(name, module, mechanism, config, listener_name)


def inter_broker_login(config: Config) -> LoginSettings:
    """Returns how this broker authenticates itself to other brokers.

    Raises:
        ConfigError: the keys do not fit together.
    """
    key = "sasl.mechanism.inter.broker.protocol"
    return node_login(config, inter_broker_listener_name(config), config.get_str(key), key)


def controller_login(config: Config) -> LoginSettings:
    """Returns how this node authenticates itself to controllers.

    Raises:
        ConfigError: the keys do not fit together.
    """
    key = "sasl.mechanism.controller.protocol"
    return node_login(config, controller_listener_names(config)[0], config.get_str(key), key)


def check_offered(config: Config, listener_name: str, mechanism_key: str) -> None:
    """Checks that a listener of this node offers the mechanism with which other nodes log in to it.

    Raises:
        ConfigError: it does not.
    """
    name, offered = _value(config, listener_name, None, "sasl.enabled.mechanisms")
    mechanism = config.get_str(mechanism_key)
    if isinstance(offered, tuple) and mechanism not in offered:
        raise ConfigError(
            [f"{name}: listener {listener_name} must offer {mechanism}, with which nodes log in ({mechanism_key})"]
        )


def problems_of(read: Callable[..., object], *arguments: object) -> list[str]:
    """Returns the problems that reading some settings reports."""
    try:
        read(*arguments)
    except ConfigError as error:
        return list(error.problems)
    return []


def client_login(config: Config) -> LoginSettings:
    """Returns how a client authenticates itself: by ``sasl.username`` and ``sasl.password``, or by a JAAS text.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    mechanism = config.get_str("sasl.mechanism")
    if not mechanism:
        raise ConfigError(
            [f"sasl.mechanism: must be set with security.protocol={config.get_str('security.protocol')}, "
             f"to one of {', '.join(MECHANISMS)}"]
        )  # fmt: skip
    name, module = _module(config, None, mechanism)
    user, password = config.get_str_or_none("sasl.username"), config.get_str_or_none("sasl.password")
    if module is not None:
        if user is not None or password is not None:
            raise ConfigError(["sasl.jaas.config: cannot be combined with sasl.username and sasl.password"])
        return _from_module(name, module, mechanism, config, None)
    if _text(config, None, None, _JAAS).strip():
        raise ConfigError([f"sasl.jaas.config = [hidden]: names no login module for sasl.mechanism = {mechanism}"])
    if mechanism == "OAUTHBEARER":
        return _token_login(name, config, None, {})
    if not user or not password:
        missing = "sasl.username" if not user else "sasl.password"
        raise ConfigError([f"{missing}: must be set with sasl.mechanism={mechanism} (or sasl.jaas.config)"])
    if not is_text(user):
        raise ConfigError([f"sasl.username = {user!r}: {NOT_UTF_8}"])
    return LoginSettings(mechanism=mechanism, user=user, password=password)


def _from_module(
    name: str, module: LoginModule, mechanism: str, config: Config, listener_name: str | None
) -> LoginSettings:
    if mechanism == "OAUTHBEARER":
        return _token_login(name, config, listener_name, module.options)
    user, password = module.options.get("username"), module.options.get("password")
    if not user or not password:
        raise ConfigError([f"{name} = [hidden]: {module.name} must have username and password"])
    is_token = module.options.get("tokenauth", "false").lower() == "true"
    if is_token and mechanism not in SCRAM_MECHANISMS:
        raise ConfigError([f"{name} = [hidden]: tokenauth needs a SCRAM mechanism, not {mechanism}"])
    return LoginSettings(mechanism=mechanism, user=user, password=password, is_token=is_token)


def _token_login(name: str, config: Config, listener_name: str | None, options: Mapping[str, str]) -> LoginSettings:
    def text(key: str) -> str:
        return _text(config, listener_name, "OAUTHBEARER", f"sasl.oauthbearer.{key}")

    token = _value(config, listener_name, "OAUTHBEARER", "sasl.oauthbearer.token")[1]
    url = text("token.endpoint.url") or options.get("token.endpoint.url")
    if token is not None and not isinstance(token, str) and not callable(token):
        raise ConfigError(["sasl.oauthbearer.token: must be a token or a function that returns one"])
    client_id = text("client.credentials.client.id") or options.get("clientId", "")
    encodes = _value(config, listener_name, "OAUTHBEARER", "sasl.oauthbearer.header.urlencode")[1]
    if (token is None) == (not url):
        raise ConfigError(
            ["sasl.oauthbearer.token: OAUTHBEARER needs either a token, or sasl.oauthbearer.token.endpoint.url"]
        )
    _check_url("sasl.oauthbearer.token.endpoint.url", url or "")
    if url and not url.startswith("file:") and not client_id:
        raise ConfigError(["sasl.oauthbearer.client.credentials.client.id: must be set with a token endpoint"])
    return LoginSettings(
        mechanism="OAUTHBEARER",
        token=token,
        token_url=url or None,
        client_id=client_id,
        client_secret=text("client.credentials.client.secret") or options.get("clientSecret", ""),
        encodes_credentials=encodes is True,
        scope=text("scope") or options.get("scope", ""),
        token_tls=_endpoint_tls(name, options) if url and url.startswith("https:") else None,
        extensions={
            name.removeprefix("extension_"): value for name, value in options.items() if name.startswith("extension_")
        },
    )


# --- bootstrap


def bootstrap_credentials(config: Config) -> tuple[BootstrapCredential, ...]:
    """Returns the credentials of ``sasl.scram.bootstrap.credentials``.

    For example ``SCRAM-SHA-256=[name=admin,password=secret]``; several are separated by semicolons.

    Raises:
        ConfigError: the text is malformed; the message does not quote it.
    """
    key = "sasl.scram.bootstrap.credentials"
    text = (config.get_str_or_none(key) or "").strip()
    found: list[BootstrapCredential] = []
    at = 0
    while at < len(text):
        entry = _ENTRY.match(text, at)
        given = _fields(entry[2]) if entry is not None else None
        if entry is None or given is None:
            raise ConfigError(
                [
                    f"{key} = [hidden]: must be like SCRAM-SHA-256=[name=admin,password=secret], with semicolons "
                    "between several"
                ]
            )
        at = entry.end()
        found.append(_credential(key, entry[1], given))
    return tuple(found)


def _fields(text: str) -> dict[str, str] | None:
    given: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _FIELD.match(text, at)
        if match is None or match[1] in given:
            return None
        given[match[1]] = match[2].strip('"')
        at = match.end()
    return given


def _credential(key: str, mechanism: str, given: Mapping[str, str]) -> BootstrapCredential:
    def refuse(problem: str) -> ConfigError:
        return ConfigError([f"{key} = [hidden]: {problem}"])

    if not given.get("name"):
        raise refuse("an entry lacks name")
    if ("password" in given) == ("saltedpassword" in given) or not (
        given.get("password") or given.get("saltedpassword")
    ):
        raise refuse(f"the entry of {given['name']} must have either password or saltedpassword")
    if "saltedpassword" in given and "salt" not in given:
        raise refuse(f"the entry of {given['name']} has a saltedpassword and lacks its salt")
    iterations = given.get("iterations", "4096")
    if not iterations.isascii() or not iterations.isdigit() or not 4096 <= int(iterations) <= 16384:
        raise refuse(f"the entry of {given['name']} must have from 4096 to 16384 iterations")
    try:
        salt = base64.b64decode(given["salt"], validate=True) if "salt" in given else None
        salted = base64.b64decode(given["saltedpassword"], validate=True) if "saltedpassword" in given else None
    except ValueError:  # also letters that are not ASCII
        raise refuse(f"the entry of {given['name']} has a salt or saltedpassword that is not base64") from None
    return BootstrapCredential(
        mechanism=mechanism,
        user=given["name"],
        password=given.get("password"),
        salt=salt,
        salted_password=salted,
        iterations=int(iterations),
    )
