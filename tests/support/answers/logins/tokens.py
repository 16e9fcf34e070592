"""Delegation tokens: their lives, and users who create, renew, end, see and use them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import trio

from moldau.protocol.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from moldau.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from moldau.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from moldau.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from moldau.runtime.sasl.core.scram import TOKEN_EXTENSION
from support.answers.logins.wire import CLOSED, Wire, connected

if TYPE_CHECKING:
    from collections.abc import Mapping

    from support.answers.session import Answer, AnswerSession

NO_TOKEN: Final = b"an hmac of no token"
DAY_MS: Final = 24 * 3_600_000
ROUNDING_MS: Final = 60_000
"""Times are compared to the minute, since the token was issued."""
LAG_S: Final = 0.1


def creation(*renewers: tuple[str, str], owner: tuple[str | None, str | None] = (None, None), life_ms: int = -1) -> Any:
    """Returns a request for a token."""
    named = [CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in renewers]
    return CreateDelegationTokenRequest(
        owner_principal_type=owner[0], owner_principal_name=owner[1], renewers=named, max_lifetime_ms=life_ms
    )


def seen_by(*owners: tuple[str, str]) -> DescribeDelegationTokenRequest:
    """Returns a request for the tokens of owners."""
    named = [DescribeDelegationTokenOwner(principal_type=kind, principal_name=name) for kind, name in owners]
    return DescribeDelegationTokenRequest(owners=named)


class Users:
    """The connections of four users, and the tokens that they have made."""

    def __init__(self, session: AnswerSession, connections: Mapping[str, AnswerSession]) -> None:
        """Begins without a token."""
        self.session = session
        self.connections = connections
        self.made: dict[str, Answer] = {}

    async def create(self, user: str, step: str, request: Any, version: int = 3) -> Answer:
        """Creates a token; keeps it by the name of the step."""
        answer = await self._ask(user, f"create: {step}", request, version)
        kept = self.session.answers[f"create: {step}"] = self._times(answer, answer.issue_timestamp_ms)
        if not answer.error_code:
            kept["life"] = _minutes(answer.max_timestamp_ms - answer.issue_timestamp_ms)
            kept["owner"] = f"{answer.principal_type}:{answer.principal_name}"
            kept["requester"] = f"{answer.token_requester_principal_type}:{answer.token_requester_principal_name}"
            self.made[step] = answer
            await self._visible(answer.token_id)
        return answer

    async def renew(self, user: str, step: str, token: str | bytes, period_ms: int = -1, version: int = 2) -> None:
        """Renews a token."""
        request = RenewDelegationTokenRequest(hmac=self._hmac(token), renew_period_ms=period_ms)
        answer = await self._ask(user, f"renew: {step}", request, version)
        self.session.answers[f"renew: {step}"] = self._times(answer, self._issued(token))

    async def expire(self, user: str, step: str, token: str | bytes, period_ms: int = -1, version: int = 2) -> None:
        """Ends a token, now or later."""
        request = ExpireDelegationTokenRequest(hmac=self._hmac(token), expiry_time_period_ms=period_ms)
        answer = await self._ask(user, f"expire: {step}", request, version)
        self.session.answers[f"expire: {step}"] = self._times(answer, self._issued(token))

    async def describe(self, user: str, step: str, request: DescribeDelegationTokenRequest, version: int = 3) -> Answer:
        """Asks for tokens, of which those made here are kept."""
        await trio.sleep(LAG_S)
        answer = await self._ask(user, f"describe: {step}", request, version)
        mine = {made.token_id: name for name, made in self.made.items()}
        found = {
            mine[each.token_id]: {
                "owner": f"{each.principal_type}:{each.principal_name}",
                "requester": f"{each.token_requester_principal_type}:{each.token_requester_principal_name}",
                "renewers": sorted({f"{one.principal_type}:{one.principal_name}" for one in each.renewers}),
                "expires": _minutes(each.expiry_timestamp - each.issue_timestamp),
                "life": _minutes(each.max_timestamp - each.issue_timestamp),
                "hmac": bytes(each.hmac) == bytes(self.made[mine[each.token_id]].hmac),
            }
            for each in answer.tokens
            if each.token_id in mine
        }
        code = self.session.comparable(answer.error_code, "error_code")
        self.session.answers[f"describe: {step}"] = {"code": code, **found}
        return answer

    async def login(self, wire: Wire, step: str, token: str, mechanism: str = "SCRAM-SHA-256") -> None:
        """Logs in with a token."""
        made = self.made[token]
        password = base64.b64encode(bytes(made.hmac)).decode()
        answer = await wire.scram(step, mechanism, made.token_id, password, extensions=TOKEN_EXTENSION)
        assert answer != CLOSED

    async def _ask(self, user: str, step: str, request: Any, version: int) -> Answer:
        connection = self.connections[user]
        answer = await connection.ask(step, request, version)
        connection.answers.pop(step)
        return answer

    async def _visible(self, token_id: str) -> None:
        while True:
            answer = await self._ask("root", "visible", DescribeDelegationTokenRequest(owners=None), 3)
            if token_id in {each.token_id for each in answer.tokens}:
                return

    def _hmac(self, token: str | bytes) -> bytes:
        return token if isinstance(token, bytes) else bytes(self.made[token].hmac)

    def _issued(self, token: str | bytes) -> int:
        return 0 if isinstance(token, bytes) else int(self.made[token].issue_timestamp_ms)

    def _times(self, answer: Answer, since_ms: int) -> dict[str, object]:
        code = self.session.comparable(answer.error_code, "error_code")
        if answer.error_code:
            return {"code": code}
        return {"code": code, "expires": _minutes(answer.expiry_timestamp_ms - since_ms)}


def _minutes(span_ms: int) -> int:
    return round(span_ms / ROUNDING_MS)


async def tokens(session: AnswerSession) -> None:
    """Creates tokens, changes their lives, looks at them, and logs in with them."""
    connections = {user: await session.logged_in(user, "password") for user in ("root", "alice", "bob", "carol")}
    users = Users(session, connections)
    await _created(users)
    await _renewed(users)
    await _seen(users)
    await _used(users)
    await _ended(users)
    for connection in connections.values():
        connection.connection.close()


async def _created(users: Users) -> None:
    for step, request in {
        "usual": creation(),
        "with a renewer": creation(("User", "bob")),
        "with itself as renewer": creation(("User", "alice")),
        "with two renewers": creation(("User", "bob"), ("User", "carol")),
        "with a renewer twice": creation(("User", "bob"), ("User", "bob")),
        "with a renewer that is unknown": creation(("User", "unknown")),
        "with a group as renewer": creation(("Group", "bob")),
        "with a renewer without a name": creation(("User", "")),
        "with a renewer without a kind": creation(("", "bob")),
        "for no time": creation(life_ms=0),
        "for -1": creation(life_ms=-1),
        "for -2": creation(life_ms=-2),
        "for 1 ms": creation(life_ms=1),
        "for an hour": creation(life_ms=DAY_MS // 24),
        "for two days": creation(life_ms=2 * DAY_MS),
        "for eight days": creation(life_ms=8 * DAY_MS),
        "for ever": creation(life_ms=2**63 - 1),
        "for the past": creation(life_ms=-(2**63)),
        "for itself": creation(owner=("User", "alice")),
        "for another": creation(owner=("User", "bob")),
        "for a group": creation(owner=("Group", "alice")),
        "for a name without a kind": creation(owner=(None, "alice")),
        "for a kind without a name": creation(owner=("User", None)),
        "for an empty owner": creation(owner=("", "")),
        "for a user without a name": creation(owner=("User", "")),
    }.items():
        await users.create("alice", step, request)
    for version in (1, 2):
        await users.create("alice", f"with version {version}", creation(("User", "bob")), version)
    await users.create("root", "by root for alice", creation(("User", "bob"), owner=("User", "alice")))
    await users.create("root", "by root for an unknown user", creation(owner=("User", "unknown")))
    await users.create("bob", "by bob", creation())


async def _renewed(users: Users) -> None:
    token = "with a renewer"
    for step, user, period_ms in (
        ("by its owner", "alice", -1),
        ("by its renewer", "bob", -1),
        ("by another", "carol", -1),
        ("by root", "root", -1),
        ("for no time", "alice", 0),
        ("for -2", "alice", -2),
        ("for the past", "alice", -(2**63)),
        ("for an hour", "alice", DAY_MS // 24),
        ("for three days", "alice", 3 * DAY_MS),
        ("for eight days", "alice", 8 * DAY_MS),
        ("for ever", "alice", 2**63 - 1),
    ):
        await users.renew(user, step, token, period_ms)
    await users.renew("alice", "unknown", NO_TOKEN)
    await users.renew("alice", "without an hmac", b"")
    await users.renew("root", "by the requester", "by root for alice")
    await users.renew("alice", "by the owner of another's", "by root for alice")
    await users.renew("bob", "by the renewer of another's", "by root for alice")
    await users.renew("alice", "of an hour beyond it", "for an hour", DAY_MS)
    await users.renew("alice", "with version 1", token, DAY_MS, 1)
    await users.describe("alice", "after renewals", seen_by(("User", "alice")))


async def _seen(users: Users) -> None:
    every = DescribeDelegationTokenRequest(owners=None)
    for user in users.connections:
        await users.describe(user, f"all, by {user}", every)
        await users.describe(user, f"those of alice, by {user}", seen_by(("User", "alice")))
    for step, request in {
        "of none": seen_by(),
        "of two": seen_by(("User", "alice"), ("User", "bob")),
        "of one twice": seen_by(("User", "bob"), ("User", "bob")),
        "of a group": seen_by(("Group", "alice")),
        "of an unknown one": seen_by(("User", "none")),
        "of a kind": seen_by(("User", "")),
        "of nothing": seen_by(("", "")),
    }.items():
        await users.describe("root", step, request)
        await users.describe("alice", f"{step}, by alice", request)
    for version in (1, 2):
        await users.describe("alice", f"all, version {version}", every, version)


async def _used(users: Users) -> None:
    session = users.session
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        wire = await connected(session, f"token of {mechanism}")
        await users.login(wire, "login", "for an hour", mechanism)
        await wire.works("works")
        await wire.ask("create with a token", creation(), 3)
        await wire.ask("renew with a token", RenewDelegationTokenRequest(hmac=NO_TOKEN, renew_period_ms=-1), 2)
        await wire.ask("expire with a token", ExpireDelegationTokenRequest(hmac=NO_TOKEN, expiry_time_period_ms=-1), 2)
        await wire.ask("describe with a token", DescribeDelegationTokenRequest(owners=None), 3)
        await wire.close()
    made = users.made["usual"]
    wire = await connected(session, "token as a user")
    await wire.scram("login", "SCRAM-SHA-256", made.token_id, base64.b64encode(bytes(made.hmac)).decode())
    await wire.close()
    wire = await connected(session, "token with a wrong hmac")
    await wire.scram("login", "SCRAM-SHA-256", made.token_id, "wrong", extensions=TOKEN_EXTENSION)
    await wire.close()


async def _ended(users: Users) -> None:
    for step, user, token, period_ms in (
        ("unknown", "alice", NO_TOKEN, -1),
        ("without an hmac", "alice", b"", -1),
        ("by another", "carol", "with a renewer", -1),
        ("in an hour", "alice", "with a renewer", DAY_MS // 24),
        ("in no time", "alice", "usual", 0),
        ("in -2", "alice", "with two renewers", -2),
        ("in the past", "alice", "with a renewer twice", -(2**63)),
        ("in eight days", "alice", "for two days", 8 * DAY_MS),
        ("never", "alice", "for eight days", 2**63 - 1),
        ("now, by its renewer", "bob", "with a renewer", -1),
        ("now", "alice", "for itself", -1),
        ("now, by root", "root", "for ever", -1),
        ("now, by its requester", "root", "by root for alice", -1),
    ):
        await users.expire(user, step, token, period_ms)
    await trio.sleep(5 * LAG_S)
    await users.expire("alice", "now again", "for itself", -1)
    await users.renew("alice", "when it has ended", "for itself", -1)
    await users.renew("alice", "when it ended in no time", "usual", -1)
    await users.renew("alice", "when it lived for 1 ms", "for 1 ms", -1)
    await users.expire("alice", "when it lived for 1 ms", "for 1 ms", -1)
    await users.expire("alice", "later, when it ended in no time", "usual", DAY_MS)
    wire = await connected(users.session, "a token that has ended")
    await users.login(wire, "login", "for itself")
    await wire.works("works")
    await wire.close()
    await users.describe("alice", "after the end", seen_by(("User", "alice")))
    await users.describe("root", "of all, after the end", DescribeDelegationTokenRequest(owners=None))
