"""The environments of outgoing connections: of a node to other nodes, and of a client, with TLS and login."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.runtime.config.listeners import (
    SecurityProtocol,
    controller_listener_names,
    controller_protocol,
    inter_broker_listener_name,
    inter_broker_protocol,
)
from moldau.runtime.config.sasl import client_login, controller_login, inter_broker_login
from moldau.runtime.config.tls import tls_settings
from moldau.runtime.net.layers import LayeredNetwork
from moldau.runtime.sasl.network import with_login
from moldau.runtime.tls.context import TlsNetwork, client_tls, outgoing_environment

if TYPE_CHECKING:
    from moldau.runtime.config.declaration import Config
    from moldau.runtime.ports.environment import Environment


def reload_outgoing(environment: Environment, config: Config, listener_name: str) -> None:
    """Takes changed settings for connections that an ``outgoing_environment`` opens from now on.

    Raises:
        ConfigError: the settings or a file cannot be used; nothing has changed then.
    """
    network = environment.network
    while isinstance(network, LayeredNetwork):
        if isinstance(network, TlsNetwork):
            network.take(tls_settings(config, listener_name))
        network = network.plain


def controllers_environment(environment: Environment, config: Config) -> Environment:
    """Returns the environment for a node's connections to controllers, with TLS and login as their listener demands.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    protocol = controller_protocol(config)
    secured = outgoing_environment(environment, config, controller_listener_names(config)[0], protocol)
    return with_login(secured, controller_login(config)) if protocol.uses_sasl else secured


def brokers_environment(environment: Environment, config: Config) -> Environment:
    """Returns the environment for a broker's connections to other brokers, with TLS and login.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    protocol = inter_broker_protocol(config)
    secured = outgoing_environment(environment, config, inter_broker_listener_name(config), protocol)
    return with_login(secured, inter_broker_login(config)) if protocol.uses_sasl else secured


def client_environment(environment: Environment, config: Config) -> Environment:
    """Returns the environment for the connections of a client with ``security.protocol``.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    context = client_tls(environment.disk, config, environment.clock)
    if context is not None:
        environment = replace(environment, network=TlsNetwork(environment.network, context))
    uses_sasl = SecurityProtocol[config.get_str("security.protocol")].uses_sasl
    return with_login(environment, client_login(config)) if uses_sasl else environment
