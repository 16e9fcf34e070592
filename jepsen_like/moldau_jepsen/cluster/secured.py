"""Security of a simulated cluster: node identities, logins, an authorizer that denies by default, and tokens.

Each broker has three listeners. PLAINTEXT admits the ordinary workloads as ``User:ANONYMOUS``, which may do only what
ACLs permit. LOGIN demands SASL from the clients whose rights change, and from members of streams groups, which have
the rights that Kafka Streams needs, and no more. INSIDE is for brokers alone, which log in as nodes; so do the peers of
a controller.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.admin import Acl
from moldau.runtime.config import ADMIN_CONFIG
from moldau.runtime.sasl.core import scram
from moldau.runtime.tls.outgoing import client_environment
from moldau.values import join_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.workloads.questions import Nodes

INSIDE_PORT: Final = 9094
LOGIN_PORT: Final = 9095
NODE, ADMIN, STREAMER = "node", "admin", "streamer"
MECHANISM: Final = "SCRAM-SHA-256"
ANONYMOUS: Final = "User:ANONYMOUS"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required"
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def password_of(user: str) -> str:
    """Returns the first password of a user of the cluster itself."""
    return f"{user}-secret"


def secured_settings(host: str, port: int, *, is_controller: bool) -> dict[str, object]:
    """Returns the keys of a node. ``port`` is that of its ordinary listener."""
    own = f'username="{NODE}" password="{password_of(NODE)}"'
    users = " ".join(f'user_{user}="{password_of(user)}"' for user in (NODE, ADMIN, STREAMER))
    plain = f"{_PLAIN} {own} {users};"
    settings: dict[str, object] = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,INSIDE:SASL_PLAINTEXT,"
        "CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": f"PLAIN,{MECHANISM}",
        "sasl.jaas.config": plain,
        "sasl.mechanism.controller.protocol": "PLAIN",
        "sasl.scram.bootstrap.credentials": ";".join(
            f"{MECHANISM}=[name={user},password={password_of(user)}]" for user in (NODE, ADMIN)
        ),
        "sasl.scram.decoy.secret": "decoy",
        "connection.failed.authentication.delay.ms": "100",
        "authorizer.class.name": "StandardAuthorizer",
        "super.users": f"User:{NODE};User:{ADMIN}",
        "delegation.token.secret.key": "cluster-secret",
        "delegation.token.expiry.check.interval.ms": "2000",
    }
    if not is_controller:
        settings |= {
            "listeners": f"PLAINTEXT://{join_address(host, port)},INSIDE://{host}:{INSIDE_PORT},LOGIN://{host}:{LOGIN_PORT}",
            "inter.broker.listener.name": "INSIDE",
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            f"listener.name.inside.{MECHANISM.lower()}.sasl.jaas.config": f"{_SCRAM} {own};",
        }
    return settings


def login(
    bootstrap: str, user: str, password: str, *, mechanism: str = MECHANISM, token: bool = False
) -> dict[str, str]:
    """Returns a client's configuration with a login; for a ``token``, user and password are its id and HMAC."""
    module = _PLAIN if mechanism == "PLAIN" else _SCRAM
    marked = ' tokenauth="true"' if token else ""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} username="{user}" password="{password}"{marked};',
    }


def login_environment(environment: Environment, config: Mapping[str, str]) -> Environment:
    """Returns the environment whose connections log in as ``config`` says."""
    return client_environment(environment, ADMIN_CONFIG.parse(config))


def anonymous_rights() -> list[Acl]:
    """Returns the ACLs with which clients without a login do everything that the ordinary workloads do."""
    names = {"cluster": "kafka-cluster", "topic": "*", "group": "*", "transactional-id": "*"}
    return [Acl(principal=ANONYMOUS, operation="all", resource=kind, name=name) for kind, name in names.items()]


def streamer_rights(group: str, topic: str) -> list[Acl]:
    """Returns the ACLs of an application of Kafka Streams; its internal topics begin with the name of its topic."""
    user = f"User:{STREAMER}"
    topics = [
        Acl(principal=user, operation=operation, resource="topic", name=topic, pattern="prefixed")
        for operation in ("read", "create")
    ]
    return [*topics, Acl(principal=user, operation="read", resource="group", name=group)]


@dataclass(frozen=True, slots=True)
class LoginNodes:
    """The nodes of a cluster, at the listeners that demand a login."""

    nodes: Nodes

    @property
    def broker_ids(self) -> Sequence[int]:
        """Ids of the brokers."""
        return self.nodes.broker_ids

    @property
    def controller_ids(self) -> Sequence[int]:
        """Ids of the controllers."""
        return self.nodes.controller_ids

    def address(self, node_id: int) -> tuple[str, int]:
        """Returns the host and port of a node's listener."""
        host, port = self.nodes.address(node_id)
        return host, LOGIN_PORT if node_id in self.nodes.broker_ids else port


@contextlib.contextmanager
def salted_once() -> Iterator[None]:
    """Lets SCRAM remember the results of PBKDF2, a pure function, during the block.

    SCRAM costs a client 2 ms of CPU at each login, on purpose. In a secured run clients log in hundreds of times with
    the same few passwords.
    """
    former = vars(scram)["pbkdf2_hmac"]
    vars(scram)["pbkdf2_hmac"] = functools.cache(hashlib.pbkdf2_hmac)
    try:
        yield
    finally:
        vars(scram)["pbkdf2_hmac"] = former
