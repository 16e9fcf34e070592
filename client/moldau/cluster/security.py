"""TLS of a client's connections, from its configuration. Certificate files are read once, when the client is made."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

from moldau.runtime.config import ConfigError

if TYPE_CHECKING:
    from moldau.runtime.config import Config


def client_ssl_context(config: Config) -> ssl.SSLContext | None:
    """Returns the TLS context of ``security.protocol`` SSL, None for PLAINTEXT. Raises ``ConfigError`` for unusable
    files.
    """
    if config.get_str("security.protocol") != "SSL":
        return None
    trusted = config.get_str_or_none("ssl.truststore.location")
    own = config.get_str_or_none("ssl.keystore.location")
    try:
        context = ssl.create_default_context(cafile=trusted)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            [f"ssl.truststore.location = {trusted!r}: not a file of PEM certificates ({error})"]
        ) from error
    if own is not None:
        try:
            context.load_cert_chain(own, password=config.get_str_or_none("ssl.key.password") or "")
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                [f"ssl.keystore.location = {own!r}: no PEM key and certificate chain ({error})"]
            ) from error
    # The name is checked against the host that was connected to; an empty algorithm switches only that off.
    context.check_hostname = config.get_str("ssl.endpoint.identification.algorithm") == "https"
    return context
