"""How this end authenticates itself: makes the client's side of an exchange for each connection."""

from __future__ import annotations

import base64
import inspect
import json
import math
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode, urlsplit

import trio

from moldau.protocol.errors import ErrorCode
from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.runtime.sasl.core.oauth import TOKEN_BYTES_MAX, OauthClient
from moldau.runtime.sasl.core.plain import PlainClient
from moldau.runtime.sasl.core.scram import DIGESTS, NONCE_BYTES, TOKEN_EXTENSION, ScramClient, salted_password

if TYPE_CHECKING:
    from moldau.runtime.config.sasl import LoginSettings
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.sasl.core.mechanism import ClientExchange

SALTED_MAX: Final = 16
"""Salted passwords that are kept: a broker with another salt costs some milliseconds, the same one nothing."""
REFRESH_AFTER: Final = 0.8
"""Part of a token's life after which a new one is fetched, as in Kafka (sasl.login.refresh.window.factor)."""


class Login:
    """The login of one client or of one node towards a listener."""

    def __init__(self, settings: LoginSettings, environment: Environment) -> None:
        self.mechanism = settings.mechanism
        self._settings = settings
        self._environment = environment
        self._salted: dict[tuple[bytes, int], bytes] = {}
        self._token: str | None = None
        self._refresh_wall_ms = -math.inf
        self._lock = trio.Lock()

    async def exchange(self) -> ClientExchange:
        """Returns the exchange for one authentication; may fetch a token.

        Raises:
            SaslAuthenticationError: no token is available, and a repetition does not help.
            OSError: the token could not be fetched this time.
        """
        if self.mechanism == "OAUTHBEARER":
            async with self._lock:
                if self._needs_token():
                    self._keep_token(await self._fetch_token())
                assert self._token is not None
                return self._bearer(self._token)
        found = self.exchange_nowait()
        assert found is not None, "passwords are at hand"
        return found

    def exchange_nowait(self) -> ClientExchange | None:
        """Returns the exchange for one authentication, None if a token must be fetched first."""
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
        return None if self._token is None or self._needs_token() else self._bearer(self._token)

    def _bearer(self, token: str) -> OauthClient:
        try:
            return OauthClient(token, self._settings.extensions)
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

    def _needs_token(self) -> bool:
        return self._token is None or self._environment.clock.wall_ms() >= self._refresh_wall_ms

    def _keep_token(self, token: str) -> None:
        now_ms = self._environment.clock.wall_ms()
        expires_ms = _expiry_ms(token)
        self._token = token
        if expires_ms is None:
            # Without a known end a configured token is kept, and a function or an endpoint is asked each time.
            self._refresh_wall_ms = math.inf if isinstance(self._settings.token, str) else now_ms
        else:
            self._refresh_wall_ms = now_ms + REFRESH_AFTER * max(0, expires_ms - now_ms)
        if isinstance(self._settings.token, str):
            self._refresh_wall_ms = math.inf

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
        file = self._environment.disk.open(urlsplit(url).path, OpenMode.READ)
        try:
            return file.read(0, TOKEN_BYTES_MAX).decode("ascii", "replace").strip()
        finally:
            file.close()

    async def _request_token(self, url: str) -> str:
        """Requests a token by the client credentials grant (RFC 6749 section 4.4)."""
        from moldau.runtime.sasl.http import HttpError, fetch  # costs memory that few clients need

        settings = self._settings
        pair = f"{quote(settings.client_id, safe='')}:{quote(settings.client_secret, safe='')}".encode()
        form = {"grant_type": "client_credentials", **({"scope": settings.scope} if settings.scope else {})}
        headers = {
            "Authorization": f"Basic {base64.b64encode(pair).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        try:
            answer = json.loads(await fetch(url, body=urlencode(form).encode(), headers=headers))
            token = answer["access_token"]
            if not isinstance(token, str):
                raise TypeError
        except HttpError as error:
            raise ConnectionError(f"sasl.oauthbearer.token.endpoint.url = {url}: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConnectionError(
                f"sasl.oauthbearer.token.endpoint.url = {url}: it returned no access_token"
            ) from error
        return token


def _expiry_ms(token: str) -> int | None:
    """Returns the end of a token's life as it says itself, None if it does not."""
    try:
        text = token.split(".")[1]
        expires = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))["exp"]
        return int(expires * 1000)
    except (IndexError, KeyError, ValueError, TypeError, OverflowError):
        return None
