"""Logins of a query's blocking connections: ``moldau.runtime.sasl`` over a socket.

The states and mechanisms are those of Moldau's own clients; this module names the ``kafka.*`` option that is wrong.
"""

from __future__ import annotations

import threading
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.runtime.config import ConfigError
from moldau.runtime.config.listeners import SecurityProtocol
from moldau.version import VERSION
from pyspark_moldau.client_options import JAAS, PREFIX, PROTOCOL, OptionError, security_config

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.protocol.errors import KafkaError
    from moldau.runtime.sasl.core.mechanism import ClientExchange
    from moldau.runtime.sasl.login import Login
    from pyspark_moldau.client_options import ClientOptions

TOKEN_KEYS: Final = ("sasl.oauthbearer.token", "sasl.oauthbearer.token.endpoint.url")
SOFTWARE: Final = ("pyspark-moldau", VERSION)
_FETCHING: Final = threading.Lock()
"""Queries of several threads share a login, whose fetch of a token belongs to one event loop."""


@lru_cache(maxsize=16)
def login_of(client: ClientOptions) -> Login | None:
    """Returns the login of a query, which its connections share; None where its protocol has no SASL.

    Raises:
        OptionError: the configuration cannot be used; the text names the key and no secret.
    """
    if not client.security:
        return None
    config = security_config(client)
    if not SecurityProtocol[config.get_str(PROTOCOL)].uses_sasl:
        return None
    from moldau.runtime.config.sasl import client_login
    from moldau.runtime.ports.real import real_environment
    from moldau.runtime.sasl.login import Login

    try:
        return Login(client_login(config), real_environment())
    except ConfigError as error:
        raise OptionError(f"{PREFIX}{error.problems[0]}") from error


def authenticate(
    client: ClientOptions, login: Login, peer: str, send: Callable[[bytes], None], receive: Callable[[], memoryview]
) -> float:
    """Authenticates one connection, and returns when it must be replaced (``time.monotonic``), in seconds.

    ``send`` takes frames with their size, ``receive`` returns frames without it.

    Raises:
        OptionError: the server refused; the text names the option and the remedy.
        OSError: the connection or the fetch of a token failed; another attempt may succeed.
    """
    from moldau.runtime.sasl.core.client import ClientSession, Done, Send, reauthentication_at_ms
    from moldau.runtime.sasl.core.errors import SaslAuthenticationError

    session = ClientSession(login.mechanism, peer, client.client_id, SOFTWARE)
    try:
        step: Send | Done = session.start(_exchange(login), 0)
        number = 0
        while isinstance(step, Send):
            send(step.frame)
            number += 1
            step = session.receive(receive(), number)
    except SaslAuthenticationError as error:
        login.refused()  # a driver that stays, such as a notebook, would log in with the same token until it ends
        raise OptionError(refusal(error, login.mechanism, dict(client.security))) from error
    return reauthentication_at_ms(1000 * time.monotonic(), step.lifetime_ms) / 1000


def _exchange(login: Login) -> ClientExchange:
    with _FETCHING:
        found = login.exchange_nowait()
        if found is None:
            import trio

            found = trio.run(login.exchange)
    return found


def refusal(error: KafkaError, mechanism: str, given: Mapping[str, str]) -> str:
    """Returns the line that names the option (of those ``given``, without prefix) and what to do."""
    if error.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        return f"{PREFIX}sasl.mechanism: {error.message}"
    if error.code is ErrorCode.ILLEGAL_SASL_STATE:
        return f"{PREFIX}{PROTOCOL}: {error.message}"
    if mechanism == "OAUTHBEARER":
        option = next((key for key in TOKEN_KEYS if key in given), JAAS)
        remedy = "check the token, or the endpoint and the client that it is for"
    elif JAAS in given:
        option, remedy = JAAS, f"check username and password, and that the user may use {mechanism}"
    else:
        option = "sasl.password"
        remedy = f"check it and {PREFIX}sasl.username, and that the user may use {mechanism}"
    return f"{PREFIX}{option}: the login was refused; {remedy} ({error.message})"
