"""Authenticates the peers of a broker's listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.runtime.config import ConfigError, broker_listeners
from moldau.runtime.sasl.listener import SaslListener, peer_handlers
from moldau_quorum.metadata.delegation_tokens import token_secret
from moldau_quorum.metadata.scram_credentials import ImageCredentials

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.config import Config, ListenerEndpoint
    from moldau.runtime.net.serving.answers import ConnectionHandler, HandlerFactory
    from moldau.runtime.ports.environment import Connection, Environment
    from moldau.runtime.sasl.core.identity import Peer
    from moldau.runtime.telemetry.log import EventLogger
    from moldau_quorum.metadata.image import MetadataImage


class Authentication:
    """The SASL of each listener that uses it."""

    def __init__(
        self, environment: Environment, config: Config, image: Callable[[], MetadataImage], logger: EventLogger
    ) -> None:
        """Reads the keys of every SASL listener; ``image`` returns the newest metadata.

        Raises:
            ConfigError: A key is missing or wrong.
        """
        self._logger = logger
        credentials = ImageCredentials(image, token_secret=token_secret(config))
        self.listeners = {
            endpoint.listener_name: SaslListener(
                environment, config, endpoint.listener_name, endpoint.security_protocol, credentials, logger
            )
            for endpoint in broker_listeners(config)
            if endpoint.security_protocol.uses_sasl
        }

    def handlers(
        self, config: Config, endpoint: ListenerEndpoint, make: Callable[[Connection, Peer], ConnectionHandler]
    ) -> HandlerFactory:
        """Returns the factory of a listener's handlers.

        Raises:
            ConfigError: A key of the listener is wrong.
        """
        sasl = self.listeners.get(endpoint.listener_name)
        return peer_handlers(config, endpoint.listener_name, endpoint.security_protocol, sasl, make)

    def reload(self, config: Config) -> None:
        """Takes changed mechanisms and users; connections that live keep their session until its end."""
        for name, listener in self.listeners.items():
            try:
                listener.reload(config)
            except ConfigError as error:
                self._logger.error("authentication-config-refused", listener=name, error=error)
