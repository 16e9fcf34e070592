"""Opens the object store that a broker's configuration names."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from moldau.runtime.config.declaration import ConfigError
from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.ports.object_names import is_name
from moldau_broker.remote_log.storage.directory import DirectoryStore
from moldau_broker.remote_log.storage.s3 import S3Settings, S3Store

if TYPE_CHECKING:
    from moldau.runtime.config.declaration import Config
    from moldau.runtime.ports.environment import Disk, Environment
    from moldau.runtime.ports.objects import ObjectStore

URL = "remote.log.storage.url"
ENDPOINT = "remote.log.storage.s3.endpoint.url"
KEY_ID = "remote.log.storage.s3.access.key.id"
SECRET = "remote.log.storage.s3.secret.access.key"
TRUSTED = "remote.log.storage.s3.truststore.location"

PREFIX_BYTES_MAX = 100
"""Bytes of the prefix of a bucket's URL: with it, a name has at most the 1,024 bytes of S3."""
CERTIFICATES_BYTES_MAX = 16 * 1024 * 1024

_BUCKET_RULE = "3 to 63 lower-case letters, digits, dots and hyphens, with a letter or digit at both ends"
_PREFIX_RULE = f"letters, digits, '.', '_', '-' and '/', at most {PREFIX_BYTES_MAX} of them, and no part '.' or '..'"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def open_object_store(environment: Environment, config: Config) -> ObjectStore:
    """Opens the store of ``remote.log.storage.url``. It makes no request, so a store that is away is no error here.

    Raises:
        ConfigError: the store cannot be opened with this configuration, or needs a library that is not installed.
    """
    url = config.get_str_or_none(URL)
    if not url:
        raise ConfigError([f"{URL}: missing broker configuration key; it must be file:///path or s3://bucket/prefix"])
    if environment.open_objects is not None:
        return environment.open_objects(url)
    parts = urlsplit(url)
    path = unquote(parts.path)
    if "?" not in url and "#" not in url:
        if parts.scheme == "file" and parts.netloc in ("", "localhost") and path.strip("/"):
            return DirectoryStore(environment, path)
        prefix = path.strip("/")
        is_prefix = not prefix or (is_name(prefix) and len(prefix) <= PREFIX_BYTES_MAX)
        if parts.scheme == "s3" and _BUCKET.fullmatch(parts.netloc) and is_prefix:
            return S3Store(environment.disk, _s3_settings(environment.disk, config, parts.netloc, prefix))
        if parts.scheme == "s3" and not _BUCKET.fullmatch(parts.netloc):
            raise ConfigError([f"{URL} = {url!r}: the name of a bucket must have {_BUCKET_RULE}"])
        if parts.scheme == "s3":
            raise ConfigError([f"{URL} = {url!r}: the prefix must have {_PREFIX_RULE}"])
    raise ConfigError([f"{URL} = {url!r}: must be file:///path or s3://bucket/prefix"])


def _s3_settings(disk: Disk, config: Config, bucket: str, prefix: str) -> S3Settings:
    endpoint = config.get_str_or_none(ENDPOINT)
    key_id, secret = config.get_str_or_none(KEY_ID), config.get_str_or_none(SECRET)
    trusted = config.get_str_or_none(TRUSTED)
    if endpoint is not None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise ConfigError([f"{ENDPOINT} = {endpoint!r}: must be a URL such as https://s3.example.com:9000"])
    # A name of the bucket before an address is no name of a host, and the library ends its thread over it.
    uses_path_style = config.get_bool("remote.log.storage.s3.path.style.access") or (
        endpoint is not None and _is_address(urlsplit(endpoint).hostname or "")
    )
    if (key_id is None) != (secret is None):
        missing = SECRET if secret is None else KEY_ID
        raise ConfigError([f"{missing}: missing broker configuration key; {KEY_ID} and {SECRET} are set together"])
    return S3Settings(
        bucket=bucket,
        prefix=prefix,
        endpoint_url=endpoint,
        region=config.get_str_or_none("remote.log.storage.s3.region"),
        access_key_id=key_id,
        secret_access_key=secret,
        uses_path_style=uses_path_style,
        trusted_pem=None if trusted is None else _certificates(disk, trusted),
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _certificates(disk: Disk, path: str) -> bytes:
    try:
        file = disk.open(path, OpenMode.READ)
        try:
            return file.read(0, CERTIFICATES_BYTES_MAX)
        finally:
            file.close()
    except (OSError, ValueError) as error:
        raise ConfigError([f"{TRUSTED} = {path!r}: cannot be read: {error}"]) from error
