"""Opens the object store that a broker's configuration names."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from moldau.runtime.config.declaration import ConfigError
from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.ports.object_names import is_name
from moldau_broker.remote_log.storage.directory import DirectoryStore
from moldau_broker.remote_log.storage.s3 import ENDPOINT_VARIABLES, S3Settings, S3Store

if TYPE_CHECKING:
    from moldau.runtime.config.declaration import Config
    from moldau.runtime.ports.environment import Disk, Environment
    from moldau.runtime.ports.objects import ObjectStore

URL = "remote.log.storage.url"
ENDPOINT = "remote.log.storage.s3.endpoint.url"
KEY_ID = "remote.log.storage.s3.access.key.id"
SECRET = "remote.log.storage.s3.secret.access.key"
REGION = "remote.log.storage.s3.region"
TRUSTED = "remote.log.storage.s3.truststore.location"

PREFIX_BYTES_MAX = 100
"""Bytes of the prefix of a bucket's URL: with it, a name has at most the 1,024 bytes of S3."""
CERTIFICATES_BYTES_MAX = 16 * 1024 * 1024

_BUCKET_RULE = "3 to 63 lower-case letters, digits, dots and hyphens, with a letter or digit at both ends"
_PREFIX_RULE = f"letters, digits, '.', '_', '-' and '/', at most {PREFIX_BYTES_MAX} of them, and no part '.' or '..'"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_HOST = re.compile(r"[A-Za-z0-9._-]+")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_FORMS = "must be file:///path or s3://bucket/prefix"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def open_object_store(environment: Environment, config: Config) -> ObjectStore:
    """Opens the store of ``remote.log.storage.url``. It makes no request, so a store that is away is no error here.

    Raises:
        ConfigError: the store cannot be opened with this configuration, or needs a library that is not installed.
    """
    url = config.get_str_or_none(URL)
    if not url:
        raise ConfigError([f"{URL}: missing broker configuration key; it {_FORMS}"])
    if environment.open_objects is not None:
        return environment.open_objects(url)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError([f"{URL} = {url!r}: {_FORMS}"]) from error
    path = unquote(parts.path)
    if "?" not in url and "#" not in url and "\0" not in path:
        is_local = parts.scheme == "file" and parts.netloc in ("", "localhost")
        if is_local and path.startswith("/") and os.path.normpath(path).strip("/"):
            return DirectoryStore(environment, path)
        prefix = path.strip("/")
        is_prefix = not prefix or (is_name(prefix) and len(prefix) <= PREFIX_BYTES_MAX)
        if parts.scheme == "s3" and _BUCKET.fullmatch(parts.netloc) and is_prefix:
            return S3Store(environment.disk, _s3_settings(environment.disk, config, parts.netloc, prefix))
        if parts.scheme == "s3" and not _BUCKET.fullmatch(parts.netloc):
            raise ConfigError([f"{URL} = {url!r}: the name of a bucket must have {_BUCKET_RULE}"])
        if parts.scheme == "s3":
            raise ConfigError([f"{URL} = {url!r}: the prefix must have {_PREFIX_RULE}"])
    raise ConfigError([f"{URL} = {url!r}: {_FORMS}"])


def _s3_settings(disk: Disk, config: Config, bucket: str, prefix: str) -> S3Settings:
    endpoint = _endpoint(config)
    # Empty is none: so is a variable that a file of containers passes on, and that is not set.
    key_id, secret, trusted, region = (config.get_str_or_none(key) or None for key in (KEY_ID, SECRET, TRUSTED, REGION))
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
        region=region,
        access_key_id=key_id,
        secret_access_key=secret,
        uses_path_style=uses_path_style,
        trusted_pem=None if trusted is None else _certificates(disk, trusted),
    )


def _endpoint(config: Config) -> str | None:
    """Returns the address of the service, with its host in ASCII; None for that of AWS.

    The library does not check it: it ends its thread over a wrong port or a name with other characters.

    Raises:
        ConfigError: it is no URL of a service. The text does not show a login.
    """
    name, given = ENDPOINT, config.get_str_or_none(ENDPOINT)
    for variable in ENDPOINT_VARIABLES:
        if given is None and os.environ.get(variable):
            name, given = variable, os.environ[variable]
    if given is None:
        return None
    from moldau.runtime.config.urls import split_url  # brokers without such an address load less

    form = "must be a URL such as https://s3.example.com:9000"
    if "@" in given:
        raise ConfigError([f"{name}: {form}, without a login"])
    try:
        parts = split_url(given)
        port = "" if parts.port is None else f":{parts.port}"
        host = (parts.hostname or "").encode("idna").decode()
    except ValueError as error:
        raise ConfigError([f"{name} = {given!r}: {form} ({error})"]) from error
    if parts.scheme not in ("http", "https") or not _is_host(host) or parts.query or parts.fragment:
        raise ConfigError([f"{name} = {given!r}: {form}"])
    return urlunsplit((parts.scheme, f"[{host}]{port}" if ":" in host else f"{host}{port}", parts.path, "", ""))


def _is_host(host: str) -> bool:
    return _HOST.fullmatch(host) is not None or ("%" not in host and _is_address(host))


def _is_address(host: str) -> bool:
    """Returns whether a URL's host is an address; libraries take each name that ends in a number for one of IPv4."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]) is not None
    return True


def _certificates(disk: Disk, path: str) -> bytes:
    try:
        file = disk.open(os.path.abspath(path), OpenMode.READ)  # as the other files of certificates
        try:
            content = file.read(0, CERTIFICATES_BYTES_MAX)
        finally:
            file.close()
    except (OSError, ValueError) as error:
        raise ConfigError([f"{TRUSTED} = {path!r}: cannot be read: {error}"]) from error
    pem = content.removeprefix(_BYTE_ORDER_MARK)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError([f"{TRUSTED} = {path!r}: holds no certificates in PEM form"]) from error
    return pem
