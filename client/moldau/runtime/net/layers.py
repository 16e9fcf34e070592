"""Networks that wrap others, as TLS and SASL do, seen from outside: a client without them need not load them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeGuard, runtime_checkable

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Connection, Environment, Network
    from moldau.runtime.sasl.network import Authenticated


@runtime_checkable
class LayeredNetwork(Protocol):
    """A network on top of another one."""

    @property
    def plain(self) -> Network:
        """The network below."""
        ...


class LoginNetwork(Protocol):
    """A network whose connections authenticate themselves."""

    @property
    def plain(self) -> Network:
        """The network below."""
        ...

    async def open_authenticated(self, host: str, port: int, client_id: str | None) -> tuple[Connection, Authenticated]:
        """Connects and authenticates; also returns the state that a later re-authentication needs."""
        ...


def logs_in(network: Network) -> TypeGuard[LoginNetwork]:
    """Returns whether a network is a ``LoginNetwork``; ``isinstance`` would look for each attribute at each connect."""
    return hasattr(network, "open_authenticated")


def plain_environment(environment: Environment) -> Environment:
    """Returns the environment without TLS and login of its connections: for checks whether a port is open."""
    network = environment.network
    while isinstance(network, LayeredNetwork):
        network = network.plain
    return environment if network is environment.network else replace(environment, network=network)
