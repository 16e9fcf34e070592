"""A broker's copy of the metadata: an image that follows the committed log of the quorum.

``MetadataFollower.run`` fetches from one controller at a time, the active one or any other, and changes to the next one
if that controller dies, does not answer or is cut off from its quorum. The first fetch usually returns a snapshot, the
later ones return new entries. Each step calls back once with a delta, in order, from the follower's task; the callback
must not wait.

The image is not kept on disk: a starting broker always fetches it. A broker that cannot reach any controller keeps its
last image and continues to serve with it; it cannot become leader of another partition without a newer image.

Metadata never go backwards. While the follower runs, its image is the measure: each fetch names its offset and epoch,
and a controller whose log cannot contain that position refuses. The follower then keeps its image and asks the next
controller. A starting broker passes a *floor*, the position that it had applied before. The image is fetched as usual,
but the callback gets nothing, and the follower has not caught up, until the image has reached the floor. A log that
ends below the floor or contradicts it is refused, and the follower starts again with the next controller. A snapshot
beyond the floor does not show which entries led to it; so the follower first asks each controller for what follows the
floor, and a controller that knows another epoch there refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.net.setup_times import SetupTimes
from moldau.runtime.tasks.supervision import BackoffPolicy
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger
from moldau_quorum.broker_side.controller_client import next_voter
from moldau_quorum.broker_side.metadata_fetch import (
    METADATA_FETCH_KEY,
    METADATA_FETCH_VERSION,
    MetadataFetchRequest,
    MetadataFetchResponse,
    decode_fetch_response,
    encode_fetch_request,
)
from moldau_quorum.broker_side.metadata_position import MetadataPosition
from moldau_quorum.broker_side.reachability import Reachability
from moldau_quorum.metadata.image import MetadataDelta, MetadataImage, delta_between
from moldau_quorum.metadata.records import MetadataCorruptError, decode_command
from moldau_quorum.metadata.snapshot import SnapshotReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from moldau.runtime.ports.environment import Environment

FETCH_WAIT_MS: Final = 500
"""Duration of a long poll: an idle follower fetches twice a second, so it notices within a second that its controller
hangs."""
FETCH_GRACE_MS: Final = 1_000
"""Time beyond the long poll that a response may take before the follower tries another controller."""
RETRY_BACKOFF_MS: Final = 20
"""Default of ``controller.quorum.retry.backoff.ms``: the first wait, after each controller has failed once."""
RETRY_BACKOFF_MS_MAX: Final = 1_000
"""Maximum of the doubling wait, so that the follower finds a recovered quorum within a second."""


class InconsistentClusterError(Exception):
    """The controllers belong to another cluster than this node."""


class MetadataWentBackError(Exception):
    """The controllers' metadata log does not contain what this broker has applied before."""


class MetadataFollower:
    """Follows the committed metadata log and keeps ``image`` up to date."""

    def __init__(
        self,
        environment: Environment,
        voters: Mapping[int, tuple[str, int]],
        *,
        node_id: int,
        cluster_id: str = "",
        floor: MetadataPosition | None = None,
        on_delta: Callable[[MetadataDelta], None],
        on_leader: Callable[[int], None] | None = None,
        on_voters: Callable[[Mapping[int, tuple[str, int]]], None] | None = None,
        retry_backoff_ms: float = RETRY_BACKOFF_MS,
        connect: Callable[[str, int], Awaitable[RpcConnection]] | None = None,
    ) -> None:
        """Takes the voters (host and port by node id) and the callbacks.

        ``on_delta`` gets every non-empty step, ``on_leader`` the id of each newly elected controller, and ``on_voters``
        the controllers whenever they have changed (KIP-853); the follower itself applies such changes. ``cluster_id``,
        if not empty, must be that of the controllers, and ``floor`` must lie within their committed log.
        """
        self._environment = environment
        self._voters = dict(sorted(voters.items()))
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._floor = floor  # None once the image has reached it
        self._on_delta = on_delta
        self._on_leader = on_leader
        self._leader_epoch = 0
        self._on_voters = on_voters
        self._open = connect or self._open_plain
        self._setup_times = SetupTimes(environment)
        self._target = environment.random.choice(list(self._voters))
        self._changed = Signal()
        self._log = EventLogger("moldau.metadata-follower", node=node_id)
        self._backoff = BackoffPolicy(
            initial_ms=retry_backoff_ms, max_ms=max(retry_backoff_ms, RETRY_BACKOFF_MS_MAX), jitter=0.5
        )
        self.reachability = Reachability(environment.clock, self._log)
        self._caught_up = False
        self._is_answered = False  # by the controller, on the present connection
        self.image = MetadataImage()
        """The newest image; the follower replaces it and never changes it."""
        self.refusal = ""
        """Why the last metadata were refused; empty once the image has reached the floor."""

    @property
    def voters(self) -> Mapping[int, tuple[str, int]]:
        """Host and port of the controllers, by id."""
        return self._voters

    @property
    def caught_up(self) -> bool:
        """Whether the image has once reached the floor and the committed offset of a controller."""
        return self._caught_up

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follows until cancelled; reports started when the image has caught up for the first time.

        Raises:
            InconsistentClusterError: the controllers belong to another cluster.
        """
        started = False
        while True:
            if self._target not in self._voters:
                self._target = next_voter(self._voters, self._target)
            host, port = self._voters[self._target]
            try:
                with self._setup_times.limited((host, port)):
                    connection = await self._open(host, port)
                self._is_answered = False
                try:
                    if self._floor is not None:
                        await self._fetch(connection, position=self._floor)
                    while True:
                        await self._step(connection)
                        if self._floor is None:
                            self.reachability.answered(self._target)
                        if self._caught_up and not started:
                            started = True
                            task_status.started()
                finally:
                    connection.close()
            except MetadataWentBackError as error:
                self.refusal = f"controller {self._target}: {error}"
                if self._floor is not None:
                    self.image = MetadataImage()  # it may hold entries of another log, and the callback got nothing
                self.reachability.failed(self._target, error, self._voters, event="metadata-went-back")
                await self._try_next()
            except (OSError, trio.TooSlowError, ProtocolError, KafkaError, MetadataCorruptError) as error:
                self.reachability.failed(self._target, error, self._voters)
                if isinstance(error, MetadataCorruptError):
                    self._log.warning("metadata-fetch-failed", controller=self._target, error=error)
                await self._try_next()

    async def _try_next(self) -> None:
        """Turns to the next controller after a failed attempt, and waits as long as the failures demand."""
        self._target = next_voter(self._voters, self._target)
        rounds, position = divmod(self.reachability.failures, len(self._voters))
        # Another controller may be up, so try it soon. Each round in which all have failed doubles the wait.
        delay_ms = self._backoff.delay_ms(max(1, rounds), self._environment.random)
        await trio.sleep((delay_ms if position == 0 else min(delay_ms, self._backoff.initial_ms)) / 1000)

    async def wait_until(self, condition: Callable[[MetadataImage], bool]) -> None:
        """Waits until ``condition`` holds for the newest image. The caller sets the deadline."""
        await self._changed.wait_until(lambda: condition(self.image))

    async def _open_plain(self, host: str, port: int) -> RpcConnection:
        return await RpcConnection.open(self._environment, host, port, f"broker-{self._node_id}")

    async def _fetch(
        self,
        connection: RpcConnection,
        *,
        snapshot_offset: int = -1,
        piece: int = 0,
        position: MetadataPosition | None = None,
    ) -> MetadataFetchResponse:
        """Fetches what follows ``position``, that of the image by default.

        Raises:
            MetadataWentBackError: the controller's log does not contain the position.
        """
        position = position or MetadataPosition(offset=self.image.offset, epoch=self.image.epoch)
        request = MetadataFetchRequest(
            cluster_id=self._cluster_id,
            node_id=self._node_id,
            next_offset=position.offset + 1,
            wait_ms=FETCH_WAIT_MS if self._caught_up else 0,
            snapshot_offset=snapshot_offset,
            piece=piece,
            last_epoch=position.epoch,
            leader_epoch=self._leader_epoch,
        )
        with trio.fail_after((FETCH_WAIT_MS + FETCH_GRACE_MS) / 1000):
            try:
                body = await connection.request_raw(
                    METADATA_FETCH_KEY, METADATA_FETCH_VERSION, encode_fetch_request(request)
                )
            except OSError as error:
                if self._is_answered:
                    raise
                # A controller closes the connection of a peer whose private messages it does not understand.
                raise ConnectionError(
                    f"it closed the connection at the first metadata fetch ({error}); if it runs an older version than "
                    "this broker, upgrade the controllers first"
                ) from error
        self._is_answered = True
        response = decode_fetch_response(body)
        if response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            raise InconsistentClusterError(
                f"this node belongs to cluster {self._cluster_id} (meta.properties in log.dirs, or cluster.id), and "
                f"controller {self._target} to another one: give the node its own log directories, or point "
                "controller.quorum.voters at its own cluster"
            )
        if response.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise MetadataWentBackError(
                f"its log does not contain offset {position.offset} with epoch {position.epoch}"
            )
        if response.error_code != ErrorCode.NONE:
            raise ConnectionError(f"controller {self._target} answers {ErrorCode.of(response.error_code).name}")
        voters = {node_id: (host, port) for node_id, host, port in response.voters}
        if self._floor is not None and response.committed_offset == 0:
            voters = {}  # they may have moved since this controller stopped
        if voters and voters != self._voters:
            self._voters = voters
            if self._on_voters is not None:
                self._on_voters(voters)
        # After the voters: a leader that has just joined them has no address before.
        if response.leader_id >= 0 and response.leader_epoch > self._leader_epoch:
            self._leader_epoch = response.leader_epoch
            if self._on_leader is not None:
                self._on_leader(response.leader_id)
        return response

    async def _step(self, connection: RpcConnection) -> None:
        response = await self._fetch(connection)
        if response.snapshot_offset >= 0:
            image = await self._read_snapshot(connection, response)
            self._advance(delta_between(self.image, image))
        elif response.entries:
            editor = self.image.edit()
            last_offset, last_epoch = self.image.offset, self.image.epoch
            for offset, entry_epoch, command in response.entries:
                epoch = entry_epoch if command else last_epoch  # Raft's own entries hold no command
                if offset <= last_offset or epoch < last_epoch:
                    raise MetadataCorruptError(
                        f"offset {offset}, epoch {epoch} follows offset {last_offset}, epoch {last_epoch}"
                    )
                if self._floor is not None:
                    self._check_entry(last_offset, last_epoch, offset, epoch)
                if command:
                    editor.replay_command(decode_command(command))
                last_offset, last_epoch = offset, epoch
            self._advance(editor.finish(offset=last_offset, epoch=last_epoch))
        if self.image.offset >= response.committed_offset >= 0:
            if self._floor is not None:
                if response.committed_offset == 0:
                    # A controller that has just started knows of no commit before the first one of its leader.
                    raise ConnectionError(f"controller {self._target} knows of no committed metadata yet")
                raise MetadataWentBackError(
                    f"the committed metadata end at offset {self.image.offset}, before offset {self._floor.offset}"
                )
            self._caught_up = True
            self._changed.notify()

    async def _read_snapshot(self, connection: RpcConnection, response: MetadataFetchResponse) -> MetadataImage:
        """Reads the rest of a snapshot whose first pieces are in ``response``."""
        reader = SnapshotReader()
        offset = response.snapshot_offset
        count = 0
        while True:
            for piece in response.pieces:
                reader.feed(piece)
                await trio.lowlevel.checkpoint()
            count += len(response.pieces)
            if response.complete:
                image = reader.finish()
                if image.offset <= self.image.offset or image.epoch < self.image.epoch:
                    raise MetadataCorruptError(
                        f"a snapshot of offset {image.offset}, epoch {image.epoch} is older than offset "
                        f"{self.image.offset}, epoch {self.image.epoch}"
                    )
                return image
            if not response.pieces:
                raise MetadataCorruptError("a snapshot ends before its last piece")
            response = await self._fetch(connection, snapshot_offset=offset, piece=count)
            if response.snapshot_offset != offset:
                raise MetadataCorruptError(f"snapshot {response.snapshot_offset} instead of {offset}")

    def _check_entry(self, last_offset: int, last_epoch: int, offset: int, epoch: int) -> None:
        """Checks the next entry against the floor; ``last_offset`` and ``last_epoch`` are those before the entry."""
        floor = self._floor
        assert floor is not None
        refusal = floor.refuses_entry(offset, epoch)
        if refusal is None and last_offset <= floor.offset < offset:
            refusal = floor.refuses_content(last_epoch)
        if refusal is not None:
            raise MetadataWentBackError(refusal)

    def _advance(self, delta: MetadataDelta) -> None:
        cluster_id = delta.image.cluster_id
        if cluster_id and self._cluster_id and cluster_id != self._cluster_id:
            raise InconsistentClusterError(
                f"controller {self._target} belongs to cluster {cluster_id}, this node to {self._cluster_id}"
            )
        if self._floor is not None:
            image = delta.image
            refusal = self._floor.refuses_entry(image.offset, image.epoch)
            if refusal is not None:
                raise MetadataWentBackError(refusal)
            if image.offset < self._floor.offset:
                self.image = image
                return
            self._floor, self.refusal = None, ""
            delta = delta_between(MetadataImage(), image)  # the callback got nothing yet
        self._cluster_id = self._cluster_id or cluster_id
        self.image = delta.image
        self._on_delta(delta)
        self._changed.notify()
