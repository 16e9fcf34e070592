"""The client of a schema registry: Confluent's REST interface over ``httpx``, under trio and asyncio.

    registry = SchemaRegistry({"schema.registry.url": "http://127.0.0.1:8081"})
    flights = AvroSerde(registry, FLIGHT_SCHEMA)
    producer = Producer(config, value_serializer=flights)

Serializers read the cache and ask for what is missing; the producer or consumer that uses them fetches it. Each fetch
opens a connection of its own, so a registry may be shared by clients, threads and event loops, and needs no closing.
Answers of registered schemas never change, so they stay in the cache. The latest version of a subject is asked for once
for each registry object and subject.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies

from moldau.cluster import arguments
from moldau.runtime.config import REGISTRY_CONFIG, Config, ConfigError
from moldau.runtime.config.tls import tls_settings
from moldau.serialization.core.proxies import proxy_for
from moldau.serialization.core.registry_requests import (
    LookUpSchema,
    RegisteredSchema,
    RegisterSchema,
    Schema,
    SchemaById,
    SubjectVersion,
    error_of,
)
from moldau.serialization.core.values import RegistryError, SchemaNeeded

try:
    import anyio
    import httpx
except ImportError as error:
    raise ImportError("the schema registry's client needs httpx: pip install 'moldau[registry]'") from error

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from moldau.runtime.tls.reloading import ReloadingContext
    from moldau.serialization.core.registry_requests import Need

T = TypeVar("T")

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
SHOWN_CHARACTERS: Final = 200
"""Most characters of an address in an answer."""
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of one answer; a longer one is refused. Real schemas have kilobytes."""


class SchemaRegistry:
    """A schema registry. Any number of serializers, clients and threads may share one."""

    def __init__(
        self, config: Mapping[str, object] | Config, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """Takes the keys of docs/config.md; ``transport`` replaces the network, for tests.

        Raises:
            ConfigError: a key is unknown or has a value that is not allowed.
        """
        self._config = arguments.configuration("SchemaRegistry", config, REGISTRY_CONFIG)
        self._urls = [url.rstrip("/") for url in self._config.get_list("schema.registry.url")]
        self._transport = transport
        self._timeout_s = self._config.get_int("request.timeout.ms") / 1000
        self._capacity = self._config.get_int("cache.capacity")
        self._lock = threading.Lock()
        self._cache: OrderedDict[Need, RegisteredSchema] = OrderedDict()
        self._tls: ReloadingContext | None = None
        self._at = 0

    @property
    def addresses(self) -> str:
        """The addresses of the registry, with commas between them and without logins."""
        return ", ".join(map(_without_login, self._urls))

    # --- the cache

    def known(self, need: Need) -> RegisteredSchema:
        """Returns an answer from the cache.

        Raises:
            SchemaNeeded: it is not there; ``resolve`` fetches it.
        """
        with self._lock:
            found = self._cache.get(need)
            if found is None:
                raise SchemaNeeded(self, need)
            self._cache.move_to_end(need)
            return found

    async def resolve(self, need: object) -> None:
        """Fetches an answer into the cache, if it is not there.

        Raises:
            RegistryError: the registry refuses the request or does not answer.
        """
        assert isinstance(need, RegisterSchema | LookUpSchema | SubjectVersion | SchemaById)
        if need not in self._cache:
            await self._fetch(need)

    async def _fetch(self, need: Need) -> RegisteredSchema:
        found = await self._asked(need.method, need.path, need.body(), need.answer)
        with self._lock:
            self._cache[need] = found
            while len(self._cache) > self._capacity:
                self._cache.popitem(last=False)
        return found

    async def _asked(self, method: str, path: str, body: object, read: Callable[[Any], T]) -> T:
        """Returns what ``read`` finds in the answer of a request.

        Raises:
            RegistryError: as ``request``, and if the document is none of a schema registry.
        """
        document = await self.request(method, path, body)
        try:
            return read(document)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise RegistryError(
                f"{method} {path}: the answer is not that of a schema registry: {error!r}", status=200
            ) from error

    # --- requests

    async def request(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - a JSON document
        """Sends a request, again after failures that may pass, and returns the JSON document of the answer.

        Raises:
            RegistryError: the registry refuses the request, or no address answers.
        """
        wait_s = self._config.get_int("retries.wait.ms") / 1000
        longest_s = self._config.get_int("retries.max.wait.ms") / 1000
        attempts = self._config.get_int("max.retries") + 1
        failure = RegistryError("unreachable")
        for attempt in range(attempts):
            if attempt:
                await anyio.sleep(min(wait_s * 2 ** (attempt - 1), longest_s))
            first = self._at  # other tasks change it meanwhile
            for at in range(first, first + len(self._urls)):
                try:
                    return await self._ask(self._urls[at % len(self._urls)], method, path, body)
                except RegistryError as error:
                    if not error.retriable:
                        raise
                    failure = error
                    self._at = at + 1
                except BaseException:
                    self._at = at + 1  # cancelled: a caller that waits less long than the request would get no further
                    raise
        raise failure

    async def _ask(self, url: str, method: str, path: str, body: object) -> Any:  # noqa: ANN401 - a JSON document
        request = f"{method} {_without_login(url)}{path}"
        headers = {"accept": CONTENT_TYPE}
        token = self._config.get("bearer.auth.token")
        if token is not None:
            headers["authorization"] = f"Bearer {_checked_token(token() if callable(token) else token)}"
        if body is not None:
            headers["content-type"] = CONTENT_TYPE
        try:
            async with self._client(url) as client:
                return await self._answer(client, request, method, url + path, headers, body)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            raise RegistryError(f"{request}: the schema registry does not answer: {_reason(error)}") from error

    def _client(self, url: str) -> httpx.AsyncClient:
        user, colon, secret = str(self._config.get("basic.auth.user.info") or "").partition(":")
        try:
            return httpx.AsyncClient(
                auth=(user, secret) if colon else None,
                verify=self._context(url),
                timeout=self._timeout_s,
                transport=self._transport,
                proxy=None if self._transport is not None else proxy_for(url, getproxies()),
                trust_env=False,
            )
        except (httpx.InvalidURL, ImportError, ValueError) as error:
            # Only the proxy's address, which the text may not show, is read here: a scheme that needs another library.
            if isinstance(error, ConfigError):
                raise
            raise RegistryError(
                f"{_without_login(url)}: the proxy that HTTP_PROXY, HTTPS_PROXY or ALL_PROXY names cannot be used: "
                f"{_proxy_fault(error)}"
            ) from error

    async def _answer(
        self, client: httpx.AsyncClient, request: str, method: str, url: str, headers: dict[str, str], body: object
    ) -> Any:  # noqa: ANN401 - a JSON document
        with anyio.move_on_after(self._timeout_s):
            async with client.stream(method, url, headers=headers, json=body) as response:
                content = bytearray()
                async for part in response.aiter_bytes():
                    content += part
                    if len(content) > ANSWER_BYTES_MAX:
                        raise RegistryError(
                            f"{request}: the answer has more than {ANSWER_BYTES_MAX} bytes", status=response.status_code
                        )
            return _document(request, response, bytes(content))
        raise RegistryError(f"{request}: the schema registry does not answer within {self._timeout_s:g} s")

    def _context(self, url: str) -> ssl.SSLContext | bool:
        if not url.startswith("https://"):
            return False  # nothing to verify; True would load the system's certificates for each request
        if self._tls is None:
            from moldau.runtime.ports.real import RealClock, RealDisk
            from moldau.runtime.tls.context import client_context
            from moldau.runtime.tls.reloading import ReloadingContext

            self._tls = ReloadingContext(client_context, tls_settings(self._config), RealDisk(), RealClock())
        return self._tls.current()

    # --- calls for applications

    async def register(self, subject: str, schema: Schema, *, normalize: bool = False) -> int:
        """Registers a schema under a subject and returns its id; an equal schema keeps its id.

        Raises:
            RegistryError: the schema is invalid, or incompatible with the subject's other versions.
        """
        return (await self._fetch(RegisterSchema(_subject("register", subject), schema, normalize))).id

    async def look_up(self, subject: str, schema: Schema, *, normalize: bool = False) -> RegisteredSchema:
        """Returns id and version of a registered schema.

        Raises:
            RegistryError: the subject does not have it.
        """
        return await self._fetch(LookUpSchema(_subject("look_up", subject), schema, normalize))

    async def latest(self, subject: str) -> RegisteredSchema:
        """Returns the latest version of a subject, always from the registry.

        Raises:
            RegistryError: the subject does not exist.
        """
        return await self._fetch(SubjectVersion(_subject("latest", subject)))

    async def version(self, subject: str, version: int) -> RegisteredSchema:
        """Returns a version of a subject.

        Raises:
            RegistryError: the subject or version does not exist.
        """
        number = arguments.at_least("version", "version", version, 1)
        return await self._fetch(SubjectVersion(_subject("version", subject), number))

    async def schema(self, schema_id: int) -> Schema:
        """Returns the schema with an id.

        Raises:
            RegistryError: there is none.
        """
        need = SchemaById(arguments.integer("schema", "schema_id", schema_id))
        await self.resolve(need)
        return self.known(need).schema

    async def subjects(self) -> list[str]:
        """Returns the names of all subjects.

        Raises:
            RegistryError: the registry refuses or does not answer.
        """
        return await self._asked("GET", "/subjects", None, lambda names: [str(each) for each in names])

    async def versions(self, subject: str) -> list[int]:
        """Returns the versions of a subject.

        Raises:
            RegistryError: the subject does not exist.
        """
        path = f"{SubjectVersion(_subject('versions', subject)).path.removesuffix('/latest')}"
        return await self._asked("GET", path, None, lambda numbers: [int(each) for each in numbers])

    async def is_compatible(self, subject: str, schema: Schema) -> bool:
        """Returns whether a schema may follow the latest version of a subject.

        Raises:
            RegistryError: the subject does not exist, or the schema is invalid.
        """
        path = f"/compatibility{SubjectVersion(_subject('is_compatible', subject)).path}"
        return await self._asked("POST", path, schema.to_document(), lambda found: bool(found["is_compatible"]))


def _reason(error: BaseException) -> str:
    """Returns the text of the first error in the chain that has one: ``httpx`` wraps those of the connection."""
    at: BaseException | None = error
    while at is not None:
        if str(at):
            return str(at)
        at = at.__cause__ or at.__context__
    return type(error).__name__


def _proxy_fault(error: Exception) -> str:
    if isinstance(error, ImportError):
        return "socks5:// needs a library; pip install 'httpx[socks]'"
    return "it must be an http:// or https:// URL, or socks5:// with pip install 'httpx[socks]'"


def _without_login(url: str) -> str:
    """Returns an address as errors may show it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "another address"
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _checked_token(token: object) -> str:
    """Returns a bearer token without the line end that a file has behind it.

    Raises:
        RegistryError: it cannot be sent; the text does not show it.
    """
    text = str(token).strip()
    if not text.isascii() or not text.isprintable():
        raise RegistryError("bearer.auth.token: the token has characters that no HTTP header can hold", status=401)
    return text


def _subject(call: str, subject: str) -> str:
    return arguments.text(call, "subject", subject)


def _document(request: str, response: httpx.Response, content: bytes) -> Any:  # noqa: ANN401 - a JSON document
    try:
        document = httpx.Response(200, content=content).json()
    except (ValueError, RecursionError) as error:
        if response.is_success:
            raise RegistryError(
                f"{request}: the answer is no JSON; is it the address of a schema registry?", status=200
            ) from error
        document = None
    if response.has_redirect_location:  # not followed: the login is for this address alone
        raise RegistryError(
            f"{request}: the schema registry answers {response.status_code}, which leads to "
            f"{_without_login(response.headers['location'])[:SHOWN_CHARACTERS]}; correct schema.registry.url",
            status=response.status_code,
        )
    if not response.is_success:
        raise error_of(response.status_code, document, request)
    return document
