"""How this end authenticates itself: makes the client's side of an exchange for each connection.

A token of OAUTHBEARER serves all connections until ``REFRESH_AFTER`` of its life. From then on a fetch runs beside the
connections, which go on with the token in use while it lives: it does not matter then that the identity provider is
slow or down. One fetch runs at a time. It outlives the attempts to connect that wait for it, because these may be
shorter than it is.
"""

from __future__ import annotations

import base64
import inspect
import json
import math
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_plus, urlencode

import trio

from moldau.protocol.errors import ErrorCode
from moldau.runtime.config.declaration import ConfigError
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.runtime.sasl.core.oauth import TOKEN_BYTES_MAX, OauthClient
from moldau.runtime.sasl.core.plain import PlainClient
from moldau.runtime.sasl.core.scram import DIGESTS, NONCE_BYTES, TOKEN_EXTENSION, ScramClient, salted_password
from moldau.runtime.sasl.files import read_file_url

if TYPE_CHECKING:
    from moldau.runtime.config.sasl import LoginSettings
    from moldau.runtime.ports.environment import Clock, Environment
    from moldau.runtime.sasl.core.mechanism import ClientExchange

SALTED_MAX: Final = 16
"""Salted passwords that are kept: a broker with another salt costs some milliseconds, the same one nothing."""
REFRESH_AFTER: Final = 0.8
"""Part of a token's life after which a new one is fetched, as in Kafka (sasl.login.refresh.window.factor)."""
WAIT_AFTER: Final = 0.9
"""Part of a token's life after which connections wait for the new one: the old one might end on the way."""
RETRY_MS: Final = 1_000.0
"""Least time between a failed fetch and the next one. A token that was refused earlier than this is kept."""
FETCHED_NOW_MS: Final = 10_000.0
"""A re-authentication, which cannot wait for a fetch, takes a token of unknown life that came so recently."""
FETCH_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldToken:
    """A token, and when it came. Its life is infinite if it is fixed, and 0 if it does not say when it ends."""

    text: str = field(repr=False)
    life_ms: float
    fetched_ms: float
    fetched_wall_ms: float

    def age_ms(self, clock: Clock) -> float:
        """Returns the time since it came, by the clock that is ahead: the wall clock may jump either way."""
        return max(clock.monotonic_ms() - self.fetched_ms, clock.wall_ms() - self.fetched_wall_ms)

    def has_passed(self, part: float, clock: Clock) -> bool:
        """Returns whether this part of its life is over."""
        return self.age_ms(clock) >= part * self.life_ms


class _Fetch:
    """A fetch under way, or the last one."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.token: HeldToken | None = None
        self.error: Exception | None = ConnectionError("the fetch of a token was ended")
        self.ended_ms = math.inf


class Login:
    """The login of one client or of one node towards a listener."""

    def __init__(self, settings: LoginSettings, environment: Environment) -> None:
        self.mechanism = settings.mechanism
        self._settings = settings
        self._environment = environment
        self._salted: dict[tuple[bytes, int], bytes] = {}
        self._token: HeldToken | None = None
        self._fetch: _Fetch | None = None

    async def exchange(self) -> ClientExchange:
        """Returns the exchange for one authentication; may fetch a token.

        Raises:
            SaslAuthenticationError: no token is available, and a repetition does not help.
            OSError: the token could not be fetched this time.
        """
        if self.mechanism == "OAUTHBEARER":
            return self._bearer(await self._usable_token())
        found = self.exchange_nowait()
        assert found is not None, "passwords are at hand"
        return found

    def exchange_nowait(self) -> ClientExchange | None:
        """Returns the exchange for one authentication, None if a token must be fetched first (``begin_fetch``)."""
        settings = self._settings
        if self.mechanism == "PLAIN":
            return PlainClient(settings.user, settings.password)
        if self.mechanism in DIGESTS:
            nonce = self._environment.random.getrandbits(8 * NONCE_BYTES).to_bytes(NONCE_BYTES, "big")
            return ScramClient(
                self.mechanism,
                settings.user,
                self._salt_password,
                base64.b64encode(nonce).decode().replace("=", ""),
                TOKEN_EXTENSION if settings.is_token else "",
            )
        return None if self._token is None or self.needs_fetch else self._bearer(self._token)

    def outlives(self, end_ms: float) -> bool:
        """Returns whether the token at hand lives on after ``end_ms`` (monotonic), when a session ends."""
        token, clock = self._token, self._environment.clock
        if token is None or token.has_passed(1.0, clock):
            return False
        return clock.monotonic_ms() + token.life_ms - token.age_ms(clock) > end_ms

    def exchange_at_hand(self) -> ClientExchange | None:
        """Returns the exchange with the token at hand, for a session that ends before a later one is there."""
        return None if self._token is None else self._bearer(self._token)

    @property
    def needs_fetch(self) -> bool:
        """Whether ``exchange_nowait`` returns None."""
        if self.mechanism != "OAUTHBEARER":
            return False
        token, clock = self._token, self._environment.clock
        if token is None:
            return True
        return token.has_passed(REFRESH_AFTER, clock) if token.life_ms else token.age_ms(clock) >= FETCHED_NOW_MS

    def _bearer(self, token: HeldToken) -> OauthClient:
        try:
            return OauthClient(token.text, self._settings.extensions)
        except ValueError as error:
            raise SaslAuthenticationError(ErrorCode.SASL_AUTHENTICATION_FAILED, f"OAUTHBEARER: {error}") from error

    def _salt_password(self, salt: bytes, iterations: int) -> bytes:
        known = self._salted.get((salt, iterations))
        if known is None:
            known = salted_password(self.mechanism, self._settings.password, salt, iterations)
            if len(self._salted) >= SALTED_MAX:
                self._salted.clear()
            self._salted[salt, iterations] = known
        return known

    # --- tokens

    async def _usable_token(self) -> HeldToken:
        """Returns the token for a new connection; waits for a fetch only if the present one is about to end.

        Raises:
            Exception: as ``exchange``.
        """
        clock = self._environment.clock
        token = self._token
        if token is None or token.has_passed(REFRESH_AFTER, clock):
            fetch = self.begin_fetch()
            if token is None or token.has_passed(WAIT_AFTER, clock):
                await fetch.done.wait()
                if fetch.error is None:
                    token = fetch.token
                elif token is None or token.has_passed(1.0, clock):
                    raise fetch.error.with_traceback(None)
        assert token is not None, "it was fetched"
        return token

    def begin_fetch(self) -> _Fetch:
        """Starts a fetch unless one is under way or has just failed; returns that one then."""
        fetch = self._fetch
        if fetch is not None:
            since_ms = self._environment.clock.monotonic_ms() - fetch.ended_ms
            if not fetch.done.is_set() or (fetch.error is not None and since_ms < RETRY_MS):
                return fetch
        self._fetch = fetch = _Fetch()
        trio.lowlevel.spawn_system_task(self._run_fetch, fetch, context=copy_context())  # it names a simulated machine
        return fetch

    def refused(self) -> None:
        """Drops the token, which a server has refused: it may have been revoked, or signed with a key that has gone."""
        token = self._token
        if token is not None and token.life_ms != math.inf and token.age_ms(self._environment.clock) >= RETRY_MS:
            self._token = None

    async def _run_fetch(self, fetch: _Fetch) -> None:
        try:
            with trio.fail_after(FETCH_TIMEOUT_S):
                text = await self._fetch_token()
            self._token = fetch.token = self._held(text)
            fetch.error = None
        except trio.TooSlowError:
            fetch.error = ConnectionError(f"no token came within {FETCH_TIMEOUT_S:.0f} s")
        except Exception as error:  # noqa: BLE001 - each task that waits for the token raises it
            fetch.error = error
        finally:
            fetch.ended_ms = self._environment.clock.monotonic_ms()
            fetch.done.set()

    def _held(self, text: str) -> HeldToken:
        clock = self._environment.clock
        expires_ms = None if isinstance(self._settings.token, str) else _expiry_ms(text)
        if expires_ms is not None:
            life_ms: float = max(0, expires_ms - clock.wall_ms())
        else:
            # Without a known end a configured token is kept, and a function or an endpoint is asked each time.
            life_ms = math.inf if isinstance(self._settings.token, str) else 0.0
        return HeldToken(text=text, life_ms=life_ms, fetched_ms=clock.monotonic_ms(), fetched_wall_ms=clock.wall_ms())

    async def _fetch_token(self) -> str:
        source = self._settings.token
        if isinstance(source, str):
            return source.strip()
        if source is not None:
            try:
                found = source()
                if inspect.isawaitable(found):
                    found = await found
            except Exception as error:
                raise ConnectionError(f"sasl.oauthbearer.token: the function failed: {type(error).__name__}") from error
            if not isinstance(found, str) or not found.strip():
                raise SaslAuthenticationError(
                    ErrorCode.SASL_AUTHENTICATION_FAILED,
                    f"sasl.oauthbearer.token: the function returned {type(found).__name__}, not a token",
                )
            return found.strip()
        url = self._settings.token_url
        assert url is not None, "the configuration was checked"
        return self._read_token(url) if url.startswith("file:") else await self._request_token(url)

    def _read_token(self, url: str) -> str:
        try:
            text = read_file_url(self._environment.disk, url, TOKEN_BYTES_MAX).decode("ascii", "replace").strip()
        except OSError as error:
            raise ConnectionError(f"sasl.oauthbearer.token.endpoint.url = {url}: {error.strerror or error}") from error
        if not text:  # its writer is about to fill it
            raise ConnectionError(f"sasl.oauthbearer.token.endpoint.url = {url}: the file is empty")
        return text

    async def _request_token(self, url: str) -> str:
        """Requests a token by the client credentials grant (RFC 6749 section 4.4)."""
        from moldau.runtime.sasl.http import HttpError, endpoint_context, fetch  # costs memory that few clients need

        settings = self._settings
        credentials = (settings.client_id, settings.client_secret)
        if settings.encodes_credentials:
            credentials = (quote_plus(settings.client_id), quote_plus(settings.client_secret))
        pair = ":".join(credentials).encode()
        form = {"grant_type": "client_credentials", **({"scope": settings.scope} if settings.scope else {})}
        headers = {
            "Authorization": f"Basic {base64.b64encode(pair).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        try:
            context = endpoint_context(settings.token_tls, self._environment.disk)
            answer = json.loads(await fetch(url, body=urlencode(form).encode(), headers=headers, context=context))
            token = answer["access_token"]
            if not isinstance(token, str):
                raise TypeError
        except ConfigError as error:
            raise SaslAuthenticationError(ErrorCode.SASL_AUTHENTICATION_FAILED, str(error)) from error
        except HttpError as error:
            text = f"sasl.oauthbearer.token.endpoint.url = {url}: {error}"
            if error.is_final:
                raise SaslAuthenticationError(ErrorCode.SASL_AUTHENTICATION_FAILED, text) from error
            raise ConnectionError(text) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConnectionError(
                f"sasl.oauthbearer.token.endpoint.url = {url}: it returned no access_token"
            ) from error
        return token


def _expiry_ms(token: str) -> int | None:
    """Returns the end of a token's life as it says itself, None if it does not."""
    try:
        text = token.split(".")[1]
        expires = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))["exp"]
        return int(float(expires) * 1000)
    except (IndexError, KeyError, ValueError, TypeError, OverflowError, RecursionError):
        return None
