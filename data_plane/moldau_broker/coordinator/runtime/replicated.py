"""The shell around one partition's replicated core: loads it from the log, performs its effects, runs its timer.

All coordinators use it. Two tasks live as long as the leadership. The first one loads the log; then it waits for the
high watermark in the order of the log and reports each committed write. The second one is the timer. The core changes
only between two checkpoints, so the effects of one event are performed before the next event is handled.

A core reports refusals in answers, so a ``KafkaError`` that it raises is a defect in its rules, for example about one
group. It must not end the coordinator of all others. An error about a request answers this request. After any other
one the core is dropped, as if leadership were lost, and the log is loaded into a new core: the failed event may have
left a part of its work undone.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import (
    ControlRecordType,
    CorruptRecordError,
    check_batch_crc,
    control_record_type,
    decode_records,
    encode_batch,
    encode_end_txn_marker,
    iterate_batches,
    parse_end_txn_marker,
)
from moldau.runtime.tasks.sync import Signal
from moldau.values import Offset
from moldau_broker.coordinator.runtime.completion import Completion
from moldau_broker.coordinator.runtime.effects import Answer, Append, Moment

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.schema import Response
    from moldau.records import Record
    from moldau.runtime.ports.environment import Clock
    from moldau.runtime.telemetry.log import EventLogger
    from moldau.values import Buffer, LeaderEpoch
    from moldau_broker.coordinator.runtime.effects import Effect
    from moldau_broker.coordinator.runtime.ports import InternalLog

_LOAD_RETRY_SECONDS = 1.0
_RESTART_SECONDS = 1.0
"""Pause before a partition is loaded again whose core has failed: the new core may fail at once."""
REPLAYED_PER_TURN = 500
"""Records that a loading coordinator replays before other tasks run: about 5 ms, while a read has some 40,000."""


class _LogLostError(Exception):
    """The log of the partition cannot be read any more, or another broker leads it."""


class Core(Protocol):
    """The interface of a core."""

    @property
    def unreadable_records(self) -> int:
        """Records of the log that could not be parsed."""
        ...

    def replay(self, key: Buffer | None, value: Buffer | None, producer_id: int | None = None) -> None:
        """Applies one committed record."""
        ...

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """Applies a committed transaction marker."""
        ...

    def start(self, moment: Moment) -> list[Effect]:
        """Begins to serve after the log is loaded."""
        ...

    def committed(self, append_id: int, moment: Moment) -> list[Effect]:
        """Applies a write that is committed, and all writes before it."""
        ...

    def failed(self, append_id: int, code: ErrorCode, moment: Moment) -> list[Effect]:
        """Drops a write that the log refused."""
        ...

    def resign(self, code: ErrorCode, moment: Moment) -> list[Effect]:
        """Answers all open requests after leadership is lost."""
        ...

    def on_timer(self, moment: Moment) -> list[Effect]:
        """Performs what is due."""
        ...

    def next_deadline_ms(self) -> int | None:
        """Returns when `on_timer` has to be called next."""
        ...


C = TypeVar("C", bound=Core)


class ReplicatedShard(Generic[C]):
    """One partition of an internal topic under one leader epoch.

    Invariants: ``core`` is None until the log is loaded, after `resign`, and from the failure of a core until its log
    is loaded again; each completion is answered once; the commit queue is in the order of the log.
    """

    def __init__(
        self,
        *,
        partition: int,
        leader_epoch: LeaderEpoch,
        clock: Clock,
        log: InternalLog,
        new_core: Callable[[], C],
        load_bytes_max: int,
        logger: EventLogger,
    ) -> None:
        """Starts no task before `run`."""
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.core: C | None = None
        self.resigned = False
        self._ending = False  # the nursery accepts no more tasks
        self._has_failed = False  # the present core may have forgotten a request, or may answer one twice
        self.corrupt = False
        self._clock = clock
        self._log = log
        self._new_core = new_core
        self._load_bytes_max = load_bytes_max
        self._logger = logger.bind(partition=partition, leader_epoch=leader_epoch)
        self._completions: dict[int, tuple[Completion, Callable[[ErrorCode], Response]]] = {}
        self._next_request_id = 0
        self._to_commit: deque[tuple[int, Offset]] = deque()
        self._written = Signal()
        self._deadline_changed = Signal()
        self._timer_due_ms: int | None = None
        self._performing = False
        self._resigning: ErrorCode | None = None
        self._scope = trio.CancelScope()
        self._serving = trio.CancelScope()  # of the tasks around the present core

    def moment(self) -> Moment:
        """Returns the present time."""
        return Moment(int(self._clock.monotonic_ms()), self._clock.wall_ms())

    @property
    def refusal(self) -> ErrorCode:
        """The error code for new requests; NONE if the shard accepts them."""
        if self.resigned or self._ending:
            return ErrorCode.NOT_COORDINATOR
        if self.corrupt:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE if self.core is not None else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def ask(
        self, refused: Callable[[ErrorCode], Response], decide: Callable[[C, int, Moment], list[Effect]]
    ) -> Completion:
        """Has the core decide on a new request, and returns the completion of its answer.

        ``refused`` makes the answer if the core raises an error.
        """
        assert self.core is not None
        request_id = self._next_request_id
        self._next_request_id += 1
        completion = Completion()
        self._completions[request_id] = (completion, refused)
        try:
            effects = decide(self.core, request_id, self.moment())
        except KafkaError as error:
            self._note_failure(error)
            self._answer(request_id, refused(error.code))
        else:
            self.happened(lambda core, moment: effects)
        return completion

    def happened(self, decide: Callable[[C, Moment], list[Effect]]) -> None:
        """Has the core decide on an event outside the tasks of the shard, and performs the effects."""
        assert self.core is not None
        try:
            self.perform(decide(self.core, self.moment()))
        except KafkaError as error:
            self._note_failure(error)
            self._ending = True
            self._serving.cancel()

    def _note_failure(self, error: BaseException) -> None:
        self._has_failed = True
        self._logger.error("coordinator-decision-failed", exception=error)

    def _answer(self, request_id: int, response: Response) -> None:
        opened = self._completions.pop(request_id, None)
        if opened is None:
            assert self._has_failed, f"request {request_id} is answered twice"
            return
        opened[0].complete(response)

    # Effects

    def perform(self, effects: list[Effect]) -> None:
        """Performs effects in order, and reports a write that the log refuses to the core at once."""
        assert not self._performing, "effects are performed one list after the other"
        self._performing = True
        try:
            self._perform_all(deque(effects))
        finally:
            self._performing = False
        code, self._resigning = self._resigning, None
        if code is not None:
            self.resign(code)
            return
        self._look_at_deadline()

    def _perform_all(self, queue: deque[Effect]) -> None:
        while queue:
            effect = queue.popleft()
            if isinstance(effect, Answer):
                self._answer(effect.request_id, effect.response)
                continue
            if not isinstance(effect, Append):
                self.perform_other(effect)
                continue
            try:
                end_offset = self._log.append(self.partition, self.leader_epoch, self._batch(effect))
            except KafkaError as error:
                assert self.core is not None
                self._logger.warning("append-refused", append_id=effect.append_id, error=error)
                if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    self._resigning = ErrorCode.NOT_COORDINATOR
                queue.extend(self.core.failed(effect.append_id, error.code, self.moment()))
                continue
            self.appended(effect, end_offset)
            self._to_commit.append((effect.append_id, end_offset))
            self._written.notify()

    def perform_other(self, effect: Effect) -> None:
        """Performs an effect that only one of the coordinators has."""
        raise AssertionError(f"{type(effect).__name__} is not an effect of this coordinator")

    def appended(self, effect: Append, end_offset: Offset) -> None:
        """Called when the log has taken a write, for a core that has to know where; does nothing here."""

    def replay(self, core: C, record: Record, producer_id: int | None) -> None:
        """Gives a core that is being loaded one committed record."""
        core.replay(record.key, record.value, producer_id)

    def _batch(self, effect: Append) -> bytes | bytearray:
        now = self._clock.wall_ms()
        if effect.marker is not None:
            return encode_end_txn_marker(
                commit=effect.marker.commit,
                producer_id=effect.marker.producer.producer_id,
                producer_epoch=effect.marker.producer.producer_epoch,
                coordinator_epoch=effect.marker.coordinator_epoch,
                timestamp=now,
            )
        records = [(now, record.key, record.value, ()) for record in effect.records]
        if effect.producer is None:
            return encode_batch(records)
        return encode_batch(
            records,
            producer_id=effect.producer.producer_id,
            producer_epoch=effect.producer.producer_epoch,
            is_transactional=True,
        )

    def resign(self, code: ErrorCode) -> None:
        """Ends the shard: answers all open requests and stops its tasks. Idempotent.

        An append may find that the leadership is lost and end the shard from within ``perform``. The remaining effects
        are performed first, because some of them are answers.
        """
        if self.resigned:
            return
        if self._performing:
            self._resigning = code
            return
        self.resigned = True
        self._drop_core(code)
        self._scope.cancel()
        self._logger.info("coordinator-resigned")

    def _drop_core(self, code: ErrorCode) -> None:
        """Answers all open requests and forgets the core."""
        core, self.core = self.core, None
        if core is not None:
            try:
                effects = core.resign(code, self.moment())
            except KafkaError as error:
                self._note_failure(error)
                effects = []
            for effect in effects:
                if isinstance(effect, Answer):
                    self._answer(effect.request_id, effect.response)
        assert self._has_failed or not self._completions, "a request was left without an answer"
        for completion, refused in self._completions.values():
            completion.complete(refused(code))
        self._completions.clear()

    # Tasks

    async def run(self) -> None:
        """Loads the partition and serves it until it resigns."""
        with self._scope:
            while await self._serve():
                self._drop_core(ErrorCode.NOT_COORDINATOR)
                self._to_commit.clear()
                self._ending = False  # new requests are refused as while the log is loaded
                await trio.sleep(_RESTART_SECONDS)
        if not self.corrupt:
            self.resign(ErrorCode.NOT_COORDINATOR)

    async def _serve(self) -> bool:
        """Loads the partition and serves it; returns whether only the core has failed, and may begin again."""
        self._has_failed = has_lost_log = False
        try:
            core = await self._load()
            if self.resigned:
                return False
            async with trio.open_nursery() as nursery:
                self._serving = nursery.cancel_scope
                self.core = core
                self.begin(nursery)
                try:
                    self.perform(core.start(self.moment()))
                    nursery.start_soon(self._keep_time)
                    await self._commit_writes()
                finally:
                    self._ending = True
        except* _LogLostError as group:
            # The leadership or the disk is lost; the next leader loads the partition.
            has_lost_log = True
            self._logger.info("coordinator-lost-log", error=group.exceptions[0])
        except* CorruptRecordError as group:
            # An incomplete state is worse than an unavailable coordinator.
            self.corrupt = True
            self._logger.error("coordinator-log-corrupt", exception=group.exceptions[0])
        except* KafkaError as group:
            self._note_failure(group.exceptions[0])
        return self._has_failed and not (self.resigned or self.corrupt or has_lost_log)

    def begin(self, nursery: trio.Nursery) -> None:
        """Called before the shard serves; ``nursery`` lives as long as the shard does."""

    async def _load(self) -> C:
        """Replays the log up to its present end offset, below which all writes acknowledged by earlier leaders lie.

        A core that will not serve gives back what it shares with those of other partitions: the memory of groups.
        """
        core = self._new_core()
        serves = False
        try:
            await self._replay_log(core)
            serves = not self.resigned
        except KafkaError as error:
            if error.code is ErrorCode.CORRUPT_MESSAGE:  # too damaged to find the batch
                raise CorruptRecordError(str(error)) from error
            raise _LogLostError(str(error)) from error
        finally:
            if not serves:
                core.resign(ErrorCode.NOT_COORDINATOR, self.moment())
        return core

    async def _replay_log(self, core: C) -> None:
        log, partition, epoch = self._log, self.partition, self.leader_epoch
        end_offset = log.log_end_offset(partition, epoch)
        await log.wait_committed(partition, epoch, end_offset)
        offset = log.log_start_offset(partition, epoch)
        replayed = 0
        while offset < end_offset:
            try:
                data = await log.read(partition, epoch, offset, self._load_bytes_max)
            except KafkaError as error:
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    offset = log.log_start_offset(partition, epoch)
                elif error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                    # File descriptors may be short. A failed directory ends the leadership, which the next read finds.
                    self._logger.warning("coordinator-load-failed", offset=offset, error=error)
                    await trio.sleep(_LOAD_RETRY_SECONDS)
                else:
                    raise
                continue
            before = offset
            for position, header in iterate_batches(data):
                check_batch_crc(data, position, header)
                producer_id = header.producer_id if header.is_transactional else None
                for record in decode_records(data, position, header):
                    if not header.is_control:
                        self.replay(core, record, producer_id)
                    elif control_record_type(record) in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
                        core.replay_marker(header.producer_id, parse_end_txn_marker(record).is_commit)
                    replayed += 1
                    if replayed % REPLAYED_PER_TURN == 0:
                        await trio.lowlevel.checkpoint()
                offset = Offset(header.next_offset)
            if offset == before:
                self._logger.warning("coordinator-load-stalled", offset=offset, end_offset=end_offset)
                await trio.sleep(_LOAD_RETRY_SECONDS)
            await trio.lowlevel.checkpoint()
        if core.unreadable_records:
            self._logger.warning("coordinator-skipped-records", count=core.unreadable_records)
        self._logger.info("coordinator-loaded", end_offset=end_offset)

    async def _commit_writes(self) -> None:
        """Reports writes as committed, in the order of the log."""
        while True:
            await self._written.wait_until(lambda: bool(self._to_commit))
            append_id, end_offset = self._to_commit[0]
            try:
                await self._log.wait_committed(self.partition, self.leader_epoch, end_offset)
            except KafkaError as error:
                raise _LogLostError(str(error)) from error
            if self.core is None:
                return  # the shard has resigned, and this task has passed no checkpoint since
            self._to_commit.popleft()
            self.perform(self.core.committed(append_id, self.moment()))
            await trio.lowlevel.checkpoint()

    async def _keep_time(self) -> None:
        while self.core is not None:  # None from the beginning if the first write of the core has failed
            due = self._timer_due_ms = self.core.next_deadline_ms()
            if due is None:
                await self._deadline_changed.wait()
                continue
            left_ms = due - self._clock.monotonic_ms()
            if left_ms > 0:
                with trio.move_on_after(left_ms / 1000):
                    await self._deadline_changed.wait()
                continue
            self.perform(self.core.on_timer(self.moment()))
            await trio.lowlevel.checkpoint()

    def _look_at_deadline(self) -> None:
        """Wakes the timer if the next deadline is earlier than the one it waits for."""
        if self.core is None:
            return
        due = self.core.next_deadline_ms()
        if due is not None and (self._timer_due_ms is None or due < self._timer_due_ms):
            self._timer_due_ms = due
            self._deadline_changed.notify()
