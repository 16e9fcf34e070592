"""Opens the object store that a broker's configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from moldau.runtime.config.declaration import ConfigError
from moldau_broker.remote_log.storage.directory import DirectoryStore

if TYPE_CHECKING:
    from moldau.runtime.config.declaration import Config
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.ports.objects import ObjectStore

KEY = "remote.log.storage.url"


def open_object_store(environment: Environment, config: Config) -> ObjectStore:
    """Opens the store of ``remote.log.storage.url``. It makes no request, so a store that is away is no error here.

    Raises:
        ConfigError: the store cannot be opened with this configuration, or needs a library that is not installed.
    """
    url = config.get_str_or_none(KEY)
    if not url:
        raise ConfigError([f"{KEY}: missing broker configuration key; it must be file:///path"])
    if environment.open_objects is not None:
        return environment.open_objects(url)
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and path.strip("/") and not _has_more(url):
        return DirectoryStore(environment, path)
    raise ConfigError([f"{KEY} = {url!r}: must be file:///path"])


def _has_more(url: str) -> bool:
    """Returns whether a URL has a query or a fragment, which would be part of a path by mistake."""
    return "?" in url or "#" in url
