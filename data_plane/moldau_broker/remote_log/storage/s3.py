"""An object store in a bucket of an S3-compatible service, through the library ``obstore`` (extra ``s3``).

Calls block in threads of their own. The library bounds each request and its retries, so a thread ends within about
``CALL_SECONDS`` whatever the service does; a caller that is cancelled does not wait for it.

A content up to ``PART_BYTES`` is one request. A larger one is a multipart upload, which becomes an object when all
parts are there. The library asks for one part after the other and aborts the upload when it fails. The contents are
read by the disk's threads while the upload waits, so that no thread reads a content after its put has ended.
"""

from __future__ import annotations

import os
import queue
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import urlsplit, urlunsplit

import trio

from moldau.runtime.config.declaration import ConfigError
from moldau.runtime.ports.object_names import check_folder, check_name, check_prefix, check_range, is_name
from moldau.runtime.ports.objects import LISTED_MAX, ObjectNotFoundError, ObjectStoreError, StoredObject
from moldau_broker.remote_log.storage.calls import BoundedCalls
from moldau_broker.remote_log.storage.contents import read_piece
from moldau_broker.remote_log.storage.s3_failures import explained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from obstore import ObjectMeta
    from obstore.store import S3Store as Bucket

    from moldau.runtime.ports.environment import Disk
    from moldau.runtime.ports.objects import Content

T = TypeVar("T")

PART_BYTES = 8 * 1024 * 1024
"""Bytes of a part. A put holds three of them in memory. The least that S3 allows is 5 MiB, the most 10,000 parts."""
CALLS_MAX = 16
CONNECT_SECONDS = 5
REQUEST_SECONDS = 20
RETRIES_MAX = 3
RETRY_SECONDS = 30
"""Time since the first try of a request after which it is not tried again."""
CALL_SECONDS = 60.0
"""Limit of each call, and of each part of an upload. It exceeds what the library needs: RETRY + REQUEST_SECONDS."""
DELETED_AT_ONCE = 1_000
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""AWS's variables. The library reads them itself, but would leave the bucket out where it is not in the path."""


class S3Settings(NamedTuple):
    """Where a bucket is, and how to reach it. None leaves a value to the library's own sources."""

    bucket: str
    prefix: str
    endpoint_url: str | None
    region: str | None
    access_key_id: str | None
    secret_access_key: str | None
    uses_path_style: bool
    trusted_pem: bytes | None
    """Certificates that are trusted besides those of the system."""


class S3Store:
    """The ``ObjectStore`` port over a bucket."""

    def __init__(self, disk: Disk, settings: S3Settings) -> None:
        """``disk`` reads the contents. Makes no request.

        Raises:
            ConfigError: the library is missing, or refuses the settings.
        """
        self._disk = disk
        self._bucket = _open_bucket(settings)
        self._name = f"s3://{settings.bucket}"
        self._proxy = next((name for name in os.environ if _leads_to_proxy(name, settings.endpoint_url)), "")
        self._calls = BoundedCalls(self._name, partial(_in_thread, trio.CapacityLimiter(CALLS_MAX)), CALLS_MAX)

    async def put(self, name: str, content: Content) -> None:
        """See ``ObjectStore.put``."""
        check_name(name)
        if content.size_bytes > PART_BYTES:
            await self._put_in_parts(name, content)
            return
        whole = await read_piece(self._disk, name, content, 0, content.size_bytes)
        await self._call(lambda: _library().put(self._bucket, name, whole, use_multipart=False))

    async def _put_in_parts(self, name: str, content: Content) -> None:
        parts = _Parts(trio.lowlevel.current_trio_token())
        failure: ObjectStoreError | None = None
        seconds = CALL_SECONDS * (content.size_bytes / PART_BYTES + 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._feed, parts, name, content)
            try:
                await self._call(lambda: _upload(self._bucket, name, parts), seconds)
            except ObjectStoreError as error:
                failure = error
            finally:
                parts.give_up()
                nursery.cancel_scope.cancel()
        if parts.failure is not None:
            raise parts.failure  # The upload was aborted.
        if failure is not None:
            raise failure

    async def _feed(self, parts: _Parts, name: str, content: Content) -> None:
        position, size = 0, content.size_bytes
        try:
            while position < size:
                await parts.wait_asked()
                count = min(PART_BYTES, size - position)
                parts.give(await read_piece(self._disk, name, content, position, count))
                position += count
        except OSError as error:
            parts.failure = error
            parts.give_up()
        else:
            await parts.wait_asked()
            parts.give(b"")

    async def read(self, name: str, position: int, count: int) -> bytes:
        """See ``ObjectStore.read``."""
        check_range(position, count)
        return await self._call(partial(self._read, check_name(name), position, count))

    def _read(self, name: str, position: int, count: int) -> bytes:
        library = _library()
        try:
            asked = max(count, 1)  # The library refuses an empty range.
            found: bytes = library.get_range(self._bucket, name, start=position, length=asked).to_bytes()
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):  # A bucket that is missing has lost nothing.
                raise
            raise ObjectNotFoundError(f"{self._name} has no object {name}") from None
        except library.exceptions.BaseError:
            # The service refuses a range behind the end, for which the library has no error of its own.
            if self._ends_before(name, position):
                return b""
            raise
        return found[:count]

    def _ends_before(self, name: str, position: int) -> bool:
        library = _library()
        try:
            size: int = library.head(self._bucket, name)["size"]
        except (FileNotFoundError, library.exceptions.BaseError):
            return False
        return size <= position

    async def list(self, prefix: str, *, after: str = "") -> Sequence[StoredObject]:
        """See ``ObjectStore.list``."""
        return await self._call(partial(self._list, check_prefix(prefix), check_prefix(after)))

    def _list(self, prefix: str, after: str) -> Sequence[StoredObject]:
        """Returns a page of the folder, because the library lists folders only, without names outside the prefix."""
        folder = prefix.rpartition("/")[0]
        offset = max(after, prefix[:-1]) if prefix else after
        while True:
            pages = _library().list(self._bucket, folder or None, offset=offset or None, chunk_size=LISTED_MAX)
            page: Sequence[ObjectMeta] = next(iter(pages), ())
            found = [
                StoredObject(item["path"], item["size"], int(item["last_modified"].timestamp() * 1000))
                for item in page
                if item["path"].startswith(prefix) and is_name(item["path"])
            ]
            last = page[-1]["path"] if page else ""
            if found or not page or (last > prefix and not last.startswith(prefix)):
                return found
            offset = last  # all names of the page are others, and those of the prefix may go on behind them

    async def list_folders(self, prefix: str) -> Sequence[str]:
        """See ``ObjectStore.list_folders``."""
        check_folder(prefix)
        found = await self._call(lambda: _library().list_with_delimiter(self._bucket, prefix[:-1] or None))
        return sorted(path.rpartition("/")[2] for path in found["common_prefixes"] if is_name(path))

    async def delete(self, names: Sequence[str]) -> None:
        """See ``ObjectStore.delete``."""
        paths = [check_name(name) for name in names]
        for start in range(0, len(paths), DELETED_AT_ONCE):
            some = paths[start : start + DELETED_AT_ONCE]
            await self._call(partial(_library().delete, self._bucket, some))

    def close(self) -> None:
        """See ``ObjectStore.close``; the library closes idle connections itself."""

    async def _call(self, work: Callable[[], T], seconds: float = CALL_SECONDS) -> T:
        try:
            return await self._calls.run(work, seconds)
        except (_library().exceptions.BaseError, OSError, ValueError, _GivenUpError) as error:
            raise ObjectStoreError(f"{self._name}: {explained(error, self._proxy)}") from error
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # no module has this class of the library's errors in it
                raise
            raise ObjectStoreError(f"{self._name}: the library of the store failed: {error}") from error


class _GivenUpError(Exception):
    """The caller of an upload has given up, or a part of the content did not come."""


class _Parts:
    """The parts of an upload, as the iterator from which the library takes them in its thread."""

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self.failure: OSError | None = None
        """Set when the content could not be read."""
        self._token = token
        self._asked = trio.Event()
        self._given: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # holds one part at most

    def __iter__(self) -> _Parts:
        return self

    def __next__(self) -> bytes:
        self._token.run_sync_soon(self._ask)
        try:
            part = self._given.get(timeout=CALL_SECONDS)
        except queue.Empty:
            part = None
        if part is None:
            raise _GivenUpError("the upload was given up")
        if not part:
            raise StopIteration
        return part

    def _ask(self) -> None:
        self._asked.set()

    async def wait_asked(self) -> None:
        """Waits until the thread needs the next part."""
        await self._asked.wait()
        self._asked = trio.Event()

    def give(self, part: bytes) -> None:
        """Gives the part that the thread waits for; an empty one is the end."""
        self._given.put(part)

    def give_up(self) -> None:
        """Makes the thread abort the upload when it asks for the next part, or waits for it."""
        self._given.put(None)


def _upload(bucket: Bucket, name: str, parts: _Parts) -> object:
    return _library().put(bucket, name, parts, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=1)


async def _in_thread(threads: trio.CapacityLimiter, work: Callable[[], T], /) -> T:
    return await trio.to_thread.run_sync(work, limiter=threads, abandon_on_cancel=True)


def _library() -> ModuleType:
    """Returns the library, which is imported late, because brokers without S3 need not have it.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import obstore.store
    except ImportError as error:
        raise ConfigError(["remote.log.storage.url: s3:// needs a library; pip install 'moldau[s3]'"]) from error
    return obstore


def _open_bucket(settings: S3Settings) -> Bucket:
    library = _library()
    endpoint = settings.endpoint_url
    client: dict[str, object] = {"connect_timeout": f"{CONNECT_SECONDS}s", "timeout": f"{REQUEST_SECONDS}s"}
    options: dict[str, object] = {"virtual_hosted_style_request": not settings.uses_path_style}
    if endpoint is not None:
        parts = urlsplit(endpoint)
        client["allow_http"] = parts.scheme == "http"
        host = parts.netloc if settings.uses_path_style else f"{settings.bucket}.{parts.netloc}"
        options["endpoint"] = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
    if settings.trusted_pem is not None:
        client["root_certificate"] = settings.trusted_pem
    if settings.region is not None:
        options["region"] = settings.region
    if settings.access_key_id is not None:
        # As a function, because the library would add the session token of its variables to a key of the settings.
        key = {"access_key_id": settings.access_key_id, "secret_access_key": settings.secret_access_key}
        options["credential_provider"] = lambda: {**key, "expires_at": None}
    try:
        with _hidden_variables():
            bucket: Bucket = library.store.S3Store(
                settings.bucket,
                prefix=settings.prefix or None,
                client_options=client,
                retry_config={"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
                **options,
            )
    except (library.exceptions.BaseError, ValueError) as error:
        raise ConfigError([f"remote.log.storage.s3 keys: {explained(error)}"]) from error
    return bucket


@contextmanager
def _hidden_variables() -> Iterator[None]:
    """Hides some variables from the library.

    It takes the address of S3's variable before the one it is given. An empty variable of AWS is none, as for AWS's own
    programs, but the library would take it for a region, a key or an address. A ``*`` in NO_PROXY is for all hosts, but
    the library would send requests to an address through the proxy.
    """
    hidden = {name: value for name, value in os.environ.items() if _is_hidden(name, value)}
    if "*" in (os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")).replace(" ", "").split(","):
        hidden |= {name: value for name, value in os.environ.items() if name.lower() in PROXY_VARIABLES}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


def _leads_to_proxy(name: str, endpoint: str | None) -> bool:
    scheme = "http" if endpoint is not None and endpoint.startswith("http:") else "https"
    return name.lower() in (f"{scheme}_proxy", "all_proxy") and bool(os.environ[name])


def _is_hidden(name: str, value: str) -> bool:
    return name in ENDPOINT_VARIABLES or (name.startswith("AWS_") and not value)
