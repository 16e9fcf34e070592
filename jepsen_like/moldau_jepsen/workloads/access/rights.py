"""Runs clients whose rights, passwords and tokens change while they work.

A manager grants and revokes ACLs, changes passwords, removes users, and creates, shortens and expires delegation
tokens. Workers log in to single brokers and send requests that need one right each, over connections that live on while
the rights change.
``checkers.rights`` judges each answer against what the answering broker knew meanwhile.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import trio

from moldau.admin import Acl, AclFilter, Admin
from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from moldau.records import encode_batch
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.ports.environment import SYSTEM_BUFFERS
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.values import join_address
from moldau_jepsen.checkers.rights import DESCRIBE, READ, WRITE, Outcome, Right, RightsVerdict, Watched
from moldau_jepsen.cluster.secured import ADMIN, login, login_environment, password_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from moldau.admin import DelegationToken
    from moldau.runtime.ports.environment import Arrivals, Connection, Environment, Listener, Network, SocketBuffers
    from moldau_jepsen.workloads.questions import Nodes

TOPICS = ("guarded", "guarded-2")
GROUP = "guards"
USERS = ("alice", "bob")
USER_PRINCIPALS = tuple(f"User:{user}" for user in USERS)
TOPIC, GROUP_TYPE = 2, 3
TIMEOUT_MS = 3_000
CHANGES_PER_SECOND = 6.0
REQUESTS_PER_SECOND = 25.0
LOGINS_PER_SECOND = 4.0
WORKERS = 3
LASTING_REQUESTS_PER_SECOND = 4.0
REQUESTS_PER_LOGIN_MAX = 30
ENTRIES_MAX = 10
"""ACLs of the changing rights; the manager removes some of them at this number."""
EXACT_SHARE, DENY_SHARE = 0.4, 0.2
OPPOSITE_SHARE = 0.3
"""Of the ACLs that are added: those that deny what a present one allows, or allow what it denies."""
TOKENS_MAX = 4
PRODUCE_VERSION, FETCH_VERSION = 9, 12
"""They name topics, so that a right is asked for by name."""
DENIALS = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED)


class Watch(Protocol):
    """The brokers' knowledge while a question is under way."""

    def right(self, broker_id: int, right: Right) -> AbstractContextManager[Watched]: ...

    def password(self, broker_id: int, user: str, password: str) -> AbstractContextManager[Watched]: ...

    def token(self, broker_id: int, token_id: str) -> AbstractContextManager[Watched]: ...

    def session(self, broker_id: int, token_id: str) -> AbstractContextManager[Watched]: ...


class OnceAuthenticated:
    """The ``Network`` port of a client that logs in only when it connects: brokers must end its sessions."""

    def __init__(self, network: Network) -> None:
        """``network`` logs in."""
        self._network = network

    async def listen(
        self, host: str, port: int, *, backlog: int = 1024, buffers: SocketBuffers = SYSTEM_BUFFERS
    ) -> Listener:
        """See ``Network.listen``."""
        return await self._network.listen(host, port, backlog=backlog, buffers=buffers)

    def arrivals(self) -> Arrivals | None:
        """See ``Network.arrivals``."""
        return self._network.arrivals()

    async def connect(self, host: str, port: int) -> Connection:
        """See ``Network.connect``."""
        return await self._network.connect(host, port)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that needs one right."""

    name: str
    operation: int
    resource_type: int
    send: Callable[[RpcConnection, str], object]
    """Awaitable of the error code for the resource of this name."""


class RightsWorkload:
    """The manager and the workers, and the verdict about the answers."""

    def __init__(self, nodes: Nodes, environment: Environment, watch: Watch) -> None:
        """``nodes`` gives the listeners that demand a login."""
        self._nodes = nodes
        self._environment = environment
        self._watch = watch
        self._stopping = trio.Event()
        self._passwords = {user: [password_of(user)] for user in USERS}
        self._tokens: list[DelegationToken] = []
        self._entries: list[Acl] = []
        self._number = 0
        self._token_logins = 0
        self.verdict = RightsVerdict()

    def stop(self) -> None:
        """Begins no further operation."""
        self._stopping.set()

    async def run(self) -> None:
        """Works until ``stop``."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._manage)
            for _ in range(WORKERS):
                nursery.start_soon(self._work)

    # --- the manager

    async def _manage(self) -> None:
        draw = self._environment.random
        bootstrap = ",".join(
            join_address(host, port) for host, port in map(self._nodes.address, self._nodes.broker_ids)
        )
        config = login(bootstrap, ADMIN, password_of(ADMIN))
        short = {"request.timeout.ms": 2_000, "default.api.timeout.ms": 5_000}
        async with Admin({**config, **short}, environment=self._environment) as admin:
            for user in USERS:
                await _tried(admin.set_user_password(user, password_of(user)))
            while not self._stopping.is_set():
                await trio.sleep(draw.expovariate(CHANGES_PER_SECOND))
                await self._change(admin, draw)

    async def _change(self, admin: Admin, draw: random.Random) -> None:
        kind = draw.choices(("grant", "revoke", "password", "remove", "token", "expire"), weights=(9, 6, 2, 1, 2, 2))[0]
        user = draw.choice(USERS)
        if kind == "grant" and len(self._entries) < ENTRIES_MAX:
            contradicts = self._entries and draw.random() < OPPOSITE_SHARE
            entry = opposite_of(draw.choice(self._entries)) if contradicts else drawn_entry(draw)
            self._entries.append(entry)
            await _tried(admin.create_acls([entry]))
        elif kind in ("grant", "revoke") and self._entries:
            entry = self._entries.pop(draw.randrange(len(self._entries)))
            wanted = AclFilter(
                resource=entry.resource,
                name=entry.name,
                principal=entry.principal,
                operation=entry.operation,
                permission=entry.permission,
                pattern=entry.pattern,
            )
            if not await _tried(admin.delete_acls(wanted)):
                self._entries.append(entry)  # perhaps it is still there: a later attempt removes it
        elif kind == "password":
            self._number += 1
            password = f"{user}-secret-{self._number}"
            self._passwords[user] = [*self._passwords[user][-2:], password]
            await _tried(admin.set_user_password(user, password))
        elif kind == "remove":
            await _tried(admin.remove_user_credential(user))
        elif kind == "token":
            lifetime_ms = draw.choice((2_000, 5_000, 60_000))
            token = await _result(admin.create_delegation_token(owner=f"User:{user}", max_lifetime_ms=lifetime_ms))
            if token is not None:
                self._tokens = [*self._tokens[1 - TOKENS_MAX :], token]
        elif kind == "expire" and self._tokens:
            await _tried(
                admin.expire_delegation_token(draw.choice(self._tokens).hmac, period_ms=draw.choice((-1, 500)))
            )

    # --- the workers

    async def _work(self) -> None:
        draw = self._environment.random
        while not self._stopping.is_set():
            await trio.sleep(draw.expovariate(LOGINS_PER_SECOND))
            broker_id = draw.choice(self._nodes.broker_ids)
            token = draw.choice(self._tokens) if self._tokens and draw.random() < 0.4 else None
            if token is not None:
                user = token.owner.removeprefix("User:")
                config = login("", token.token_id, token.hmac, token=True)
                watching = self._watch.token(broker_id, token.token_id)
            else:
                user = draw.choice(USERS)
                password = draw.choice(self._passwords[user])
                config = login("", user, password)
                watching = self._watch.password(broker_id, user, password)
            # Every second session by token stays open, without another login, for longer than most tokens live.
            self._token_logins += token is not None
            lasting = token if self._token_logins % 2 else None
            connection = await self._log_in(broker_id, config, watching, user, renews=lasting is None)
            if connection is not None:
                try:
                    await self._use(connection, broker_id, f"User:{user}", lasting)
                finally:
                    connection.close()

    async def _log_in(
        self,
        broker_id: int,
        config: dict[str, str],
        watching: AbstractContextManager[Watched],
        user: str,
        *,
        renews: bool,
    ) -> RpcConnection | None:
        environment = login_environment(self._environment, {**config, "bootstrap.servers": "unused:1"})
        if not renews:
            environment = replace(environment, network=OnceAuthenticated(environment.network))
        with watching as watched:
            connection = None
            try:
                address = self._nodes.address(broker_id)
                connection = await RpcConnection.open(environment, *address, "rights", timeout_ms=TIMEOUT_MS)
                outcome = Outcome.PERMITTED
            except SaslAuthenticationError:
                outcome = Outcome.DENIED
            except (OSError, trio.TooSlowError, ProtocolError, KafkaError):
                outcome = Outcome.UNKNOWN
            self.verdict.take(watched, outcome, f"login of {user} at broker {broker_id}: {outcome.value}")
        return connection

    async def _use(
        self, connection: RpcConnection, broker_id: int, principal: str, lasting: DelegationToken | None
    ) -> None:
        """Sends requests; the broker must end the session of a ``lasting`` token."""
        draw = self._environment.random
        rate = REQUESTS_PER_SECOND if lasting is None else LASTING_REQUESTS_PER_SECOND
        for _ in range(draw.randint(1, REQUESTS_PER_LOGIN_MAX)):
            if self._stopping.is_set():
                return
            await trio.sleep(draw.expovariate(rate))
            ask = draw.choice(ASKS)
            name = draw.choice(TOPICS) if ask.resource_type == TOPIC else GROUP
            right = Right(principal, ask.operation, ask.resource_type, name)
            with ExitStack() as stack:
                watched = stack.enter_context(self._watch.right(broker_id, right))
                session = None
                if lasting is not None:
                    session = stack.enter_context(self._watch.session(broker_id, lasting.token_id))
                try:
                    code = await ask.send(connection, name)  # type: ignore[misc]
                except (OSError, trio.TooSlowError, ProtocolError, KafkaError):
                    return
                outcome = Outcome.DENIED if code in DENIALS else Outcome.PERMITTED
                text = f"{ask.name} of {name} by {principal} at broker {broker_id}: {ErrorCode.of(code).name}"
                self.verdict.take(watched, outcome, text)
                if session is not None:
                    self.verdict.take(session, Outcome.PERMITTED, f"{text}, in a session whose token had expired")


def drawn_entry(draw: random.Random) -> Acl:
    """Draws an ACL that concerns the guarded names, or only seems to."""
    on_topics = draw.random() < 0.75
    base = draw.choice(TOPICS) if on_topics else GROUP
    pattern = draw.choice(("literal", "prefixed"))
    names = (
        base,
        base[:-1],
        base[: len(base) // 2],
        f"{base}x",
        base[:3] + "X",
        "*" if pattern == "literal" else base[:1],
    )
    operations = (
        ("all", "read", "write", "describe", "delete", "alter") if on_topics else ("all", "read", "describe", "delete")
    )
    name = base if draw.random() < EXACT_SHARE else draw.choice(names)
    principal = draw.choice((*USER_PRINCIPALS, *USER_PRINCIPALS, "User:*", "User:alic"))
    operation = draw.choice(operations)
    permission = "deny" if draw.random() < DENY_SHARE else "allow"
    return _without_harm(
        Acl(
            resource="topic" if on_topics else "group",
            name=name,
            principal=principal,
            operation=operation,
            permission=permission,
            pattern=pattern,
        )
    )


def opposite_of(entry: Acl) -> Acl:
    """Returns the ACL that denies what ``entry`` allows, or allows what it denies: of the two, the denial counts."""
    return _without_harm(replace(entry, permission="allow" if entry.permission == "deny" else "deny"))


def _without_harm(entry: Acl) -> Acl:
    if (entry.name, entry.principal, entry.permission) == ("*", "User:*", "deny"):
        # It would stop the clients of all other workloads, for as long as it is there.
        return replace(entry, principal=USER_PRINCIPALS[0])
    return entry


async def _tried(call: object) -> bool:
    """Returns whether a change was acknowledged; its effect is judged by what brokers come to know."""
    try:
        await call  # type: ignore[misc]
    except (KafkaError, OSError, trio.TooSlowError, TimeoutError):
        return False
    return True


async def _result(call: object) -> DelegationToken | None:
    try:
        return await call  # type: ignore[misc, no-any-return]
    except (KafkaError, OSError, trio.TooSlowError, TimeoutError):
        return None


# --- requests that need one right each


async def _produce(connection: RpcConnection, topic: str) -> int:
    batch = encode_batch([(0, None, b"guarded", ())])
    partition = PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[TopicProduceData(name=topic, partition_data=[partition])]
    )
    answer = await connection.request_as(ProduceResponse, request, PRODUCE_VERSION, timeout_ms=TIMEOUT_MS)
    return answer.responses[0].partition_responses[0].error_code


async def _fetch(connection: RpcConnection, topic: str) -> int:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1024)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1024, topics=[FetchTopic(topic=topic, partitions=[partition])]
    )
    answer = await connection.request_as(FetchResponse, request, FETCH_VERSION, timeout_ms=TIMEOUT_MS)
    return answer.responses[0].partitions[0].error_code if answer.responses else 0


async def _metadata(connection: RpcConnection, topic: str) -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    answer = await connection.request_as(MetadataResponse, request, timeout_ms=TIMEOUT_MS)
    return answer.topics[0].error_code


async def _describe_group(connection: RpcConnection, group: str) -> int:
    request = DescribeGroupsRequest(groups=[group])
    answer = await connection.request_as(DescribeGroupsResponse, request, timeout_ms=TIMEOUT_MS)
    return answer.groups[0].error_code


async def _offsets(connection: RpcConnection, group: str) -> int:
    wanted = OffsetFetchRequestTopics(name=TOPICS[0], partition_indexes=[0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[wanted])])
    answer = await connection.request_as(OffsetFetchResponse, request, 8, timeout_ms=TIMEOUT_MS)
    return answer.groups[0].error_code


ASKS: Sequence[Ask] = (
    Ask("produce", WRITE, TOPIC, _produce),
    Ask("fetch", READ, TOPIC, _fetch),
    Ask("metadata", DESCRIBE, TOPIC, _metadata),
    Ask("describe-groups", DESCRIBE, GROUP_TYPE, _describe_group),
    Ask("offset-fetch", DESCRIBE, GROUP_TYPE, _offsets),
)
