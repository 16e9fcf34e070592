"""The broker's side of its membership: registration, heartbeats, fencing, controlled shutdown (KIP-631, KIP-866).

A *session* exists only on the active controller, while heartbeats arrive. ``BrokerSession`` keeps it alive over one
connection of its own, so that no slow request delays a heartbeat. If that connection breaks, the controller waits only
``broker.session.grace.ms`` for another heartbeat before it fences the broker. ``BrokerSession`` therefore notices a
broken connection at once and sends its next heartbeat without delay, to another controller if necessary.

States of the session, all reported by the controller:

    registered -> (catches up with the metadata) -> unfenced -> controlled shutdown -> may stop
          ^----------- fenced, or forgotten and registered again ------------'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from moldau.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    Feature,
    Listener,
)
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger
from moldau_quorum.broker_side.controller_client import ControllerClient, ControllerUnavailableError
from moldau_quorum.controller.cluster.features import SUPPORTED_FEATURES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from uuid import UUID

    from moldau.runtime.net.rpc import RpcConnection
    from moldau.runtime.ports.environment import Environment
    from moldau_quorum.metadata.records import Endpoint

HEARTBEAT_INTERVAL_MS: Final = 2_000
SESSION_TIMEOUT_MS: Final = 9_000
ATTEMPT_TIMEOUT_MS_MIN: Final = 1_000
REGISTRATION_RETRY_MS: Final = 200
REGISTRATION_TIMEOUT_MS: Final = 60_000


class RegistrationRefusedError(Exception):
    """The controller refuses this broker permanently: wrong cluster, unsupported features, malformed endpoints."""


class RegistrationTimedOutError(RegistrationRefusedError):
    """No active controller accepted the registration within ``initial.broker.registration.timeout.ms``."""


class DuplicateBrokerError(RegistrationRefusedError):
    """Another live broker has this id, and kept it for the whole registration timeout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """The data with which a broker registers."""

    broker_id: int
    incarnation_id: UUID
    """Each process draws a new id; it distinguishes a restart from a retry."""
    cluster_id: str = ""
    """From ``meta.properties``; empty if this node never belonged to a cluster."""
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    features: tuple[tuple[str, int, int], ...] = tuple((name, *SUPPORTED_FEATURES[name]) for name in SUPPORTED_FEATURES)
    """Lowest and highest level of each feature that the broker knows."""
    log_dirs: tuple[UUID, ...] = ()
    """Ids of the log directories that worked when the broker started."""
    previous_broker_epoch: int = -1
    """From the clean-shutdown file of the log directories (KIP-966); -1 after an unclean stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryReport:
    """The ids of the log directories of a broker that need the controller's attention."""

    offline: tuple[UUID, ...] = ()
    """Those that have failed since the start of the process."""
    cordoned: tuple[UUID, ...] | None = None
    """Those that take no new replicas, working or not; None as long as the broker does not know them."""


class BrokerSession:
    """Registers a broker and keeps its session alive."""

    def __init__(
        self,
        environment: Environment,
        voters: Mapping[int, tuple[str, int]],
        registration: BrokerRegistration,
        *,
        metadata_offset: Callable[[], int],
        ready: Callable[[], bool] = lambda: True,
        directories: Callable[[], DirectoryReport] = DirectoryReport,
        heartbeat_interval_ms: float = HEARTBEAT_INTERVAL_MS,
        session_timeout_ms: float = SESSION_TIMEOUT_MS,
        registration_timeout_ms: float = REGISTRATION_TIMEOUT_MS,
        connect: Callable[[str, int], Awaitable[RpcConnection]] | None = None,
    ) -> None:
        """Takes the voters (host and port by node id), the registration and the sources of heartbeat fields.

        ``metadata_offset`` returns ``MetadataFollower.image.offset``. Until ``ready()`` is true the broker asks to stay
        fenced. Call ``wake`` when ``directories`` returns another report. ``session_timeout_ms`` is the broker's own
        ``broker.session.timeout.ms``; a heartbeat waits no longer for a response.
        """
        self._environment = environment
        self._registration = registration
        self._metadata_offset = metadata_offset
        self._ready = ready
        self._directories = directories
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._session_timeout_ms = session_timeout_ms
        self._registration_timeout_ms = registration_timeout_ms
        self._client = ControllerClient(
            environment,
            voters,
            client_id=f"broker-{registration.broker_id}-session",
            connection_lost=self.wake,
            attempt_timeout_ms=max(ATTEMPT_TIMEOUT_MS_MIN, session_timeout_ms / 3),
            connect=connect,
        )
        self._woken = trio.Event()
        self._changed = Signal()
        self._log = EventLogger("moldau.broker-session", node=registration.broker_id)
        self._shutdown_wanted = False
        self.may_stop = False
        """Whether the controller has granted this broker's request to stop."""
        self.broker_epoch = -1
        """Epoch of the current registration; -1 before the first. AlterPartition and fetches carry it."""
        self.fenced = True
        """Whether the broker was fenced according to the last heartbeat's response."""
        self.caught_up_ms = float("-inf")
        """Monotonic time at which the last heartbeat was sent that reported the newest metadata: the controller knew no
        newer ones when it answered."""
        self.last_contact_ms = float("-inf")
        """Monotonic time at which the last answered heartbeat was sent. By this node's clock, the session holds at
        least until this time plus the session timeout."""

    async def run(self, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Registers, reports started with the broker epoch, then sends heartbeats until cancelled.

        Raises:
            DuplicateBrokerError: another live broker has the id.
            RegistrationTimedOutError: no active controller answered the first registration in time.
            RegistrationRefusedError: the controller refuses this broker permanently.
        """
        try:
            await self._register_first()
            task_status.started(self.broker_epoch)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_connection)
                while True:
                    self._woken = trio.Event()  # before the heartbeat, so that a wake during it triggers the next one
                    await self._beat()
                    with trio.move_on_after(self._next_delay_ms() / 1000):
                        await self._woken.wait()
        finally:
            self._client.close()

    def suggest_controller(self, controller_id: int) -> None:
        """Sends the next heartbeat to a newly elected controller now; for ``MetadataFollower(on_leader=...)``."""
        self._client.suggest(controller_id)
        self.wake()

    def update_voters(self, voters: Mapping[int, tuple[str, int]]) -> None:
        """Replaces the set of controllers; for ``MetadataFollower(on_voters=...)``."""
        self._client.update_voters(voters)

    def wake(self) -> None:
        """Sends the next heartbeat now."""
        self._woken.set()

    async def wait_unfenced(self) -> None:
        """Waits until the controller has unfenced this broker. The caller sets the deadline."""
        await self._changed.wait_until(lambda: not self.fenced)

    async def controlled_shutdown(self) -> None:
        """Asks the controller to move leadership away, and returns when this broker may stop.

        ``run`` must be running. The caller sets the deadline, and stops the broker in any case when it passes.
        """
        self._shutdown_wanted = True
        self.wake()
        await self._changed.wait_until(lambda: self.may_stop)

    def _next_delay_ms(self) -> float:
        if self._shutdown_wanted or (self.fenced and self._ready()):
            return min(self._heartbeat_interval_ms, 100)
        return self._heartbeat_interval_ms

    async def _watch_connection(self) -> None:
        """Notices the end of the session's connection while no request is in progress."""
        while True:
            await self._client.wait_disconnected()
            self.wake()

    async def _register_first(self) -> None:
        try:
            await self._register()
        except ControllerUnavailableError as error:
            raise RegistrationTimedOutError(
                f"broker {self._registration.broker_id} could not register within "
                f"initial.broker.registration.timeout.ms = {self._registration_timeout_ms:.0f}: {error}"
            ) from error

    async def _register_again(self) -> None:
        """Registers again, without a time limit: a broker that has served continues without a registration."""
        while True:
            try:
                await self._register()
            except ControllerUnavailableError as error:
                self._log.warning("registration-unanswered", reason=error)
            else:
                return

    async def _register(self) -> None:
        """Registers the broker and sets its epoch.

        Raises:
            ControllerUnavailableError: no active controller answered in time.
            RegistrationRefusedError: the controller refuses the broker.
        """
        registration = self._registration
        offline = self._directories().offline
        request = BrokerRegistrationRequest(
            broker_id=registration.broker_id,
            cluster_id=registration.cluster_id,
            incarnation_id=registration.incarnation_id,
            listeners=[
                Listener(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
                for e in registration.endpoints
            ],
            features=[
                Feature(name=name, min_supported_version=lowest, max_supported_version=highest)
                for name, lowest, highest in registration.features
            ],
            rack=registration.rack,
            log_dirs=[directory for directory in registration.log_dirs if directory not in offline],
            previous_broker_epoch=registration.previous_broker_epoch,
        )
        clock = self._environment.clock
        deadline_ms = clock.monotonic_ms() + self._registration_timeout_ms
        while True:
            sent_ms = clock.monotonic_ms()
            remaining_ms = max(1.0, deadline_ms - sent_ms)
            response = await self._client.request(request, BrokerRegistrationResponse, timeout_ms=remaining_ms)
            code = response.error_code
            if code == ErrorCode.NONE:
                self.broker_epoch = response.broker_epoch
                self.last_contact_ms = sent_ms
                self.fenced = True
                self._log.info("registered", epoch=self.broker_epoch, controller=self._client.active_controller_id)
                return
            # An attempt after the deadline could not be answered, and would hide this refusal.
            if clock.monotonic_ms() + REGISTRATION_RETRY_MS >= deadline_ms or code in (
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                ErrorCode.UNSUPPORTED_VERSION,
                ErrorCode.INVALID_REGISTRATION,
                ErrorCode.INVALID_REQUEST,
            ):
                raise _refusal(registration, code)
            self._log.warning(
                "registration-refused", error=ErrorCode.of(code).name, reason=str(_refusal(registration, code))
            )
            await trio.sleep(REGISTRATION_RETRY_MS / 1000)

    async def _beat(self) -> None:
        directories = self._directories()
        request = BrokerHeartbeatRequest(
            broker_id=self._registration.broker_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._metadata_offset(),
            want_fence=not self._ready() and not self._shutdown_wanted,
            want_shut_down=self._shutdown_wanted,
            offline_log_dirs=list(directories.offline),
            cordoned_log_dirs=None if directories.cordoned is None else list(directories.cordoned),
        )
        sent_ms = self._environment.clock.monotonic_ms()
        try:
            response = await self._client.request(request, BrokerHeartbeatResponse, timeout_ms=self._session_timeout_ms)
        except ControllerUnavailableError as error:
            self._log.warning("heartbeat-unanswered", reason=error)
            return
        code = response.error_code
        if code == ErrorCode.NONE:
            self.last_contact_ms = sent_ms
            if response.is_caught_up:
                self.caught_up_ms = sent_ms
            if response.is_fenced != self.fenced:
                self._log.info("fenced" if response.is_fenced else "unfenced", epoch=self.broker_epoch)
            self.fenced = response.is_fenced
            self.may_stop = response.should_shut_down
            self._changed.notify()
        elif code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            self._log.warning("registration-lost", error=ErrorCode.of(code).name, epoch=self.broker_epoch)
            self.fenced = True
            await self._register_again()
            self._changed.notify()
            self.wake()
        else:
            self._log.warning("heartbeat-refused", error=ErrorCode.of(code).name)


def _refusal(registration: BrokerRegistration, code: int) -> RegistrationRefusedError:
    name = ErrorCode.of(code).name
    if code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
        return DuplicateBrokerError(
            f"node.id {registration.broker_id} belongs to another live broker, or to one that ended just now ({name}): "
            "if both are to run, give this node a node.id of its own and empty log.dirs"
        )
    if code == ErrorCode.INCONSISTENT_CLUSTER_ID:
        return RegistrationRefusedError(
            f"this node belongs to cluster {registration.cluster_id!r}, the controllers to another one ({name}): "
            "point controller.quorum.voters at its own cluster, or empty its log directories"
        )
    if code == ErrorCode.UNSUPPORTED_VERSION:
        known = ", ".join(f"{feature} {lowest} to {highest}" for feature, lowest, highest in registration.features)
        return RegistrationRefusedError(
            f"the cluster is at a level that this broker does not support ({name}); it supports {known}: start a newer "
            "version, or lower the cluster's levels (moldau features describe)"
        )
    return RegistrationRefusedError(f"the controller refuses broker {registration.broker_id}: {name}")
