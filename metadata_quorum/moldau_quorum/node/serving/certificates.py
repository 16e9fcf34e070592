"""The certificates in force at a controller: those that its file names, overridden by the metadata (KIP-226).

``ssl.client.auth`` is that of the file alone, because it decides at the start how controllers tell each other from
clients (``principals``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from moldau.runtime.config import BROKER_CONFIG, ConfigError, controller_listener_names, with_dynamic
from moldau.runtime.config.tls import CLIENT_AUTH
from moldau.runtime.tls.outgoing import reload_outgoing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.telemetry.log import EventLogger
    from moldau.runtime.tls.context import ListenerTls
    from moldau_quorum.metadata.image import MetadataImage

_PREFIX: Final = "ssl."


class CertificateSettings:
    """Keeps a controller's listeners, and its connections to other controllers, at the TLS settings in force."""

    def __init__(
        self, config: Config, listeners: Mapping[str, ListenerTls], outgoing: Environment, logger: EventLogger
    ) -> None:
        """``config`` is that of the node's file; ``outgoing`` opens connections to other controllers."""
        self._static = config
        self._listeners = listeners
        self._outgoing = outgoing
        self._logger = logger
        self._node_id = config.get_int("node.id")
        self._seen: list[dict[str, str]] = [{}, {}]

    def follow(self, image: MetadataImage) -> None:
        """Applies the settings in the metadata; one that cannot be used is logged, and the former stay in use."""
        layers = [_followed(values) for values in image.dynamic_layers(self._node_id)]
        if layers == self._seen:
            return
        self._seen = layers
        config, _ = with_dynamic(self._static, *layers)
        takes: list[tuple[str, Callable[[], None]]] = [
            (name, partial(tls.reload, config, name)) for name, tls in self._listeners.items()
        ]
        to_controllers = controller_listener_names(config)[0]
        takes.append((to_controllers, partial(reload_outgoing, self._outgoing, config, to_controllers)))
        for name, take in takes:
            try:
                take()
            except ConfigError as error:
                self._logger.error("certificates-refused", listener=name, error=error)


def _followed(values: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if _is_followed(name)}


def _is_followed(name: str) -> bool:
    try:
        key = BROKER_CONFIG.key(name).name
    except KeyError:
        return False
    return key.startswith(_PREFIX) and key != CLIENT_AUTH
