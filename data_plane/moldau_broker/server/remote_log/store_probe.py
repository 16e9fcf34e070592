"""Tries the object store when a broker starts, and says in the log whether it does what the broker needs.

A broker starts without its store, and a quiet one may not use it for hours. So a wrong address, key or mount point, or
a right that is missing, would be found only when the first segment is closed. The probe lists, and it puts, reads and
deletes an object of the broker's own, with the same few bytes each time. One that a broker leaves behind when it ends
disturbs nothing, and its next start deletes it. If the probe fails, it is repeated with the back-off of the tasks until
it succeeds for the first time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from moldau.runtime.ports.objects import ObjectStoreError
from moldau_broker.server.remote_log.copier import BytesContent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.ports.objects import ObjectStore
    from moldau.runtime.tasks.supervision import BackoffPolicy
    from moldau.runtime.telemetry.log import EventLogger

PROBE_MS: Final = 60_000.0
"""Bound of each request of an attempt; the stores have shorter bounds of their own."""
CONTENT: Final = b"A broker tries the object store when it starts. This object may be deleted.\n"
_ENDPOINT: Final = "correct remote.log.storage.s3.endpoint.url, or start the service"
ADVICE: Final = (
    (("the directory of the object store is missing: is it mounted?",), "mount it, or make it"),
    (("No space left on device",), "give the store room. Copies go on by themselves; what has not fitted is removed"),
    (("InvalidAccessKeyId", "SignatureDoesNotMatch"), "correct the key, then restart the brokers one by one"),
    (("AccessDenied", "AllAccessDisabled"), "give the key the rights of the guide to tiered storage"),
    (("Read-only file system", "Permission denied"), "let the brokers' user write to the directory"),
    (("NoSuchBucket",), "make the bucket, or correct remote.log.storage.url"),
    (
        (
            "PermanentRedirect",
            "AuthorizationHeaderMalformed",
            "IllegalLocationConstraintException",
            "the bucket is in another region",
        ),
        "correct remote.log.storage.s3.region",
    ),
    (
        ("ETag Header missing", "non-partial response", "invalid list response", "invalid DeleteObjects response"),
        "correct remote.log.storage.s3.endpoint.url: what answers there is no S3 API. A console has another port",
    ),
    (
        ("301 Moved Permanently", "307 Temporary Redirect", "308 Permanent Redirect"),
        "correct remote.log.storage.s3.endpoint.url (https:// in place of http://?) or remote.log.storage.s3.region",
    ),
    (("RequestTimeTooSkewed",), "set the clock of the broker's machine"),
    (("ExpiredToken", "InvalidToken"), "renew the session token, then restart the brokers one by one"),
    (("SlowDown",), "let the service take more requests, or make segment.bytes larger, so that fewer are needed"),
    (("Connection refused", "no answer in time", "failed to lookup address"), _ENDPOINT),
    (
        ("the answer is not TLS",),
        "begin remote.log.storage.s3.endpoint.url with http://, or give the address of a port with TLS",
    ),
    (
        ("Connection reset by peer",),
        "begin remote.log.storage.s3.endpoint.url with https://, if the port has TLS",
    ),
    (("its certificate is not trusted",), "name the authority in remote.log.storage.s3.truststore.location"),
    (("no credentials were found",), "set the key, AWS's variables, or a role"),
    (("did not answer within", "no answer within"), "look at the service or file server, and at the network to it"),
)
"""Signs in causes, and what an operator can do: the table of the guide to tiered storage. The first row counts."""
OTHER: Final = "look at the store; the broker goes on, and copies when the store answers"


def advice_for(cause: str) -> str:
    """Returns what an operator can do about an error of a store."""
    text = cause.casefold()
    return next((advice for signs, advice in ADVICE if any(sign.casefold() in text for sign in signs)), OTHER)


class StoreProbe:
    """The probe of one broker."""

    def __init__(
        self,
        environment: Environment,
        store: ObjectStore,
        name: str,
        url: str,
        backoff: BackoffPolicy,
        logger: EventLogger,
    ) -> None:
        """``name`` is that of the broker's object. ``url`` is ``remote.log.storage.url``, which holds no secret."""
        self._environment = environment
        self._store = store
        self._name = name
        self._url = url
        self._backoff = backoff
        self._logger = logger
        self.failure = ""
        """Why the last attempt failed; empty before the first has ended, and when one has succeeded."""

    async def run(self) -> None:
        """Returns when the store does what it must; logs the first failure, another cause, and the success."""
        failures, logged = 0, ""
        while (cause := await self._attempt()) is not None:
            failures += 1
            self.failure = cause
            if cause != logged:
                logged = cause
                self._logger.error("object-store-fails", url=self._url, cause=cause, advice=advice_for(cause))
            await trio.sleep(self._backoff.delay_ms(failures, self._environment.random) / 1000)
        self.failure = ""
        self._logger.info("object-store-answers", url=self._url, failures=failures)

    async def _attempt(self) -> str | None:
        """Returns why the store did not do what a broker needs, None if it did."""
        name = self._name
        steps: tuple[tuple[str, Callable[[], Awaitable[object]]], ...] = (
            ("", partial(self._store.list, name.rpartition("/")[0] + "/")),
            ("an object cannot be written: ", partial(self._store.put, name, BytesContent(CONTENT))),
            ("an object cannot be read: ", self._read),
            ("an object cannot be deleted: ", partial(self._store.delete, [name])),
        )
        for failure, step in steps:
            try:
                with trio.fail_after(PROBE_MS / 1000):
                    await step()
            except ObjectStoreError as error:
                return f"{failure}{error}"
            except trio.TooSlowError:
                return f"{failure}no answer within {PROBE_MS / 1000:g} s"
        return None

    async def _read(self) -> None:
        """Reads the object that was put.

        Raises:
            ObjectStoreError: the store did not answer, refused, or has other bytes.
        """
        found = await self._store.read(self._name, 0, len(CONTENT) + 1)
        if found != CONTENT:
            raise ObjectStoreError(f"{self._name} has {len(found)} bytes that are not the {len(CONTENT)} written")
