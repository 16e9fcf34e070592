"""The sessions of browsers: one cookie each, bound to the console's own identity or to a user that signed in."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.console.core.access import same_secret
from moldau_cli.console.core.logins import login_settings, offered_mechanisms
from moldau_cli.console.identities import check_login, open_identity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.runtime.ports.environment import Environment
    from moldau_cli.console.identities import Identity

SESSIONS_MAX: Final = 64
"""The session that was unused for longest gives way to a new one."""
SESSION_S: Final = 8 * 3600.0
"""A session that is unused for so long ends."""
LOGIN_TIMEOUT_S: Final = 10.0
FAILURE_PAUSE_S: Final = 0.5
"""A refused login takes at least this long, and two are tried at a time: no fast guessing."""


class LoginError(Exception):
    """A login was refused. The text is for the user."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)  # the keys open the session
class Session:
    """One browser. ``scope`` ends the clients of a user that signed in."""

    identity: Identity
    user: str
    key: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    used_at_s: float = 0.0
    scope: trio.CancelScope | None = None


class Sessions:
    """All sessions.

    Invariant: there are at most ``SESSIONS_MAX``.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        settings: Mapping[str, str],
        *,
        shared: Identity | None,
        token: str | None,
        environment: Environment | None = None,
    ) -> None:
        """Takes the identity that all sessions share; with None each user signs in. ``token`` guards all of them."""
        self._nursery = nursery
        self._settings = settings
        self._shared = shared
        self._token = token
        self._environment = environment
        self._sessions: dict[str, Session] = {}
        self._attempts = trio.CapacityLimiter(2)

    @property
    def wants_token(self) -> bool:
        """Whether a new session needs the console's token."""
        return self._token is not None

    @property
    def wants_login(self) -> bool:
        """Whether a new session needs a user of the cluster."""
        return self._shared is None

    @property
    def mechanisms(self) -> list[str]:
        """The mechanisms of a login, the likeliest first."""
        return offered_mechanisms(self._settings)

    def find(self, key: str | None) -> Session | None:
        """Returns the session with a cookie's key; ends it if it is too old."""
        session = self._sessions.get(key) if key else None
        now_s = trio.current_time()
        if session is None:
            return None
        if now_s - session.used_at_s > SESSION_S:
            self.close(session)
            return None
        session.used_at_s = now_s
        session.identity.use()
        return session

    async def open(self, *, token: str, user: str, password: str, mechanism: str) -> Session:
        """Opens a session.

        Raises:
            LoginError: the token, the user or the password is wrong.
            KafkaError: no broker answered.
        """
        async with self._attempts:
            try:
                return await self._open(token, user, password, mechanism)
            except LoginError:
                await trio.sleep(FAILURE_PAUSE_S)
                raise

    async def _open(self, token: str, user: str, password: str, mechanism: str) -> Session:
        if self._token is not None and not same_secret(token, self._token):
            raise LoginError("the token is wrong")
        if self._shared is not None:
            return self._add(Session(identity=self._shared, user=""))
        try:
            settings = login_settings(self._settings, user, password, mechanism)
        except ValueError as error:
            raise LoginError(str(error)) from error
        try:
            with trio.fail_after(LOGIN_TIMEOUT_S):
                await check_login(settings, self._environment)
        except (KafkaError, trio.TooSlowError) as error:
            if isinstance(error, KafkaError) and error.code is not ErrorCode.SASL_AUTHENTICATION_FAILED:
                raise
            if isinstance(error, trio.TooSlowError):
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no broker answered in time") from error
            raise LoginError("the cluster refused this user and password") from error
        scope: trio.CancelScope
        scope, identity = await self._nursery.start(self._keep_identity, settings)
        return self._add(Session(identity=identity, user=user, scope=scope))

    async def _keep_identity(
        self,
        settings: Mapping[str, str],
        *,
        task_status: trio.TaskStatus[tuple[trio.CancelScope, Identity]],
    ) -> None:
        with trio.CancelScope() as scope:
            async with open_identity(settings, self._environment) as identity:
                task_status.started((scope, identity))
                await trio.sleep_forever()

    def _add(self, session: Session) -> Session:
        now_s = trio.current_time()
        for old in [each for each in self._sessions.values() if now_s - each.used_at_s > SESSION_S]:
            self.close(old)
        while len(self._sessions) >= SESSIONS_MAX:
            self.close(min(self._sessions.values(), key=lambda each: each.used_at_s))
        session.used_at_s = now_s
        session.identity.use()
        self._sessions[session.key] = session
        return session

    def close(self, session: Session) -> None:
        """Ends a session and the clients of its user; idempotent."""
        self._sessions.pop(session.key, None)
        if session.scope is not None:
            session.scope.cancel()
