"""Asks the object store once at the start of a broker whether it answers, and says so in the log.

A broker starts without its store, and a quiet one may not use it for hours. So a wrong address, key or mount point
would be found only when the first segment is closed. The probe is one list request, of a prefix that no object has. If
it fails, it is repeated with the back-off of the tasks until the store answers for the first time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau.runtime.ports.objects import ObjectStoreError
from moldau_broker.remote_log.core.names import cluster_folder

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.ports.objects import ObjectStore
    from moldau.runtime.tasks.supervision import BackoffPolicy
    from moldau.runtime.telemetry.log import EventLogger

PROBE_MS: Final = 60_000.0
"""Bound of one attempt; the stores have shorter bounds of their own."""
PROBED: Final = "probe/"
"""Part of a name that no object of a broker has: their folders are ids of topics."""
_ADVICE: Final = (
    ("is it mounted", "mount the directory, or make it"),
    ("No space left", "give the store room"),
    ("InvalidAccessKeyId", "correct the access key, then restart the brokers one by one"),
    ("SignatureDoesNotMatch", "correct the secret of the access key, then restart the brokers one by one"),
    ("AccessDenied", "give the access key the rights of the guide to tiered storage"),
    ("NoSuchBucket", "make the bucket, or correct remote.log.storage.url"),
    ("Connection refused", "correct remote.log.storage.s3.endpoint.url, or start the service"),
    ("failed to lookup", "correct remote.log.storage.s3.endpoint.url"),
    ("certificate", "name the authority in remote.log.storage.s3.truststore.location"),
    ("no credentials", "set an access key, AWS's variables, or a role"),
)
_OTHER: Final = "look at the store; the broker goes on, and copies when the store answers"


def advice_for(cause: str) -> str:
    """Returns what an operator can do about an error of a store."""
    return next((advice for sign, advice in _ADVICE if sign.casefold() in cause.casefold()), _OTHER)


class StoreProbe:
    """The probe of one broker."""

    def __init__(
        self,
        environment: Environment,
        store: ObjectStore,
        cluster_id: str,
        url: str,
        backoff: BackoffPolicy,
        logger: EventLogger,
    ) -> None:
        """``url`` is ``remote.log.storage.url``, which holds no secret."""
        self._environment = environment
        self._store = store
        self._prefix = cluster_folder(cluster_id) + PROBED
        self._url = url
        self._backoff = backoff
        self._logger = logger
        self.failure = ""
        """Why the last attempt failed; empty before the first has ended, and when the store has answered."""

    async def run(self) -> None:
        """Returns when the store has answered; logs the first failure, another cause, and the answer."""
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
        """Returns why the store did not answer, None if it did."""
        try:
            with trio.fail_after(PROBE_MS / 1000):
                await self._store.list(self._prefix)
        except ObjectStoreError as error:
            return str(error)
        except trio.TooSlowError:
            return f"no answer within {PROBE_MS / 1000:g} s"
        return None
