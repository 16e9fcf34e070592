"""The image on which the active controller decides: what is committed, and all that it has proposed on top.

A proposal names the controller epoch in which it was decided, and the log refuses it in any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau_quorum.controller.context import SLICE_RECORDS
from moldau_quorum.controller.unclean_elections import elections
from moldau_quorum.log.port import LogBusyError, MetadataLog, NotLeaderError, OutcomeUnknownError, Proposal
from moldau_quorum.metadata.records import (
    Command,
    CommandTooLargeError,
    MetadataRecord,
    decode_command,
    encode_command,
)
from moldau_quorum.metadata.snapshot import RECORD_BYTES_MAX, check_records_fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.ports.environment import Clock
    from moldau.runtime.telemetry.log import EventLogger
    from moldau_quorum.metadata.image import MetadataImage
    from moldau_quorum.node.election_times import ElectionTimes
    from moldau_quorum.node.state_machine import MetadataStateMachine

RECORDS_PER_COMMAND_MAX: Final = 50_000
"""A larger slice of a decision is refused. Walks over partitions stay far below (``SLICE_RECORDS``)."""
INDIVISIBLE_RECORDS: Final = 2 * SLICE_RECORDS
"""A larger command is decided, encoded, decoded and replayed in separate turns."""
BUSY_RETRY_MS: Final = 10.0
"""Pause before a log that was busy is asked again."""


class Projection:
    """The decided state of one controller epoch after the other.

    Invariant: while ``epoch`` is not None, ``image`` is the machine's image of the epoch's begin with all commands of
    this epoch, and ``last_proposal`` is the newest of them.
    """

    __slots__ = (
        "_clock",
        "_log",
        "_machine",
        "_metadata_log",
        "_sequence",
        "commands",
        "elections",
        "epoch",
        "image",
        "last_proposal",
        "records_in_turn",
        "unclean_elections",
    )

    def __init__(
        self,
        clock: Clock,
        metadata_log: MetadataLog,
        machine: MetadataStateMachine,
        elections: ElectionTimes,
        log: EventLogger,
    ) -> None:
        self._clock = clock
        self._metadata_log = metadata_log
        self._machine = machine
        self._log = log
        self.elections = elections
        self.epoch: int | None = None
        """The present controller epoch; None while this node does not decide."""
        self.image: MetadataImage = machine.image
        self._sequence = -1
        self.last_proposal: Proposal | None = None
        self.records_in_turn = 0
        """Records since another task could run; the caller resets it."""
        self.commands = self.unclean_elections = 0
        """Counts since the start of the process."""

    def begin(self, epoch: int) -> None:
        """Begins a controller epoch with the committed image."""
        self.epoch = epoch
        self.image = self._machine.image
        self._sequence = -1
        self.last_proposal = None

    def end(self) -> None:
        """Ends the controller epoch; the image stays as the last one that was decided on."""
        self.epoch = None
        self._machine.expect_nothing()
        self.elections.forget()

    async def propose(self, records: Sequence[MetadataRecord]) -> None:
        """Writes records as one command and replays them on the projection.

        Each command is decoded and replayed as every replica will do it before it enters the log: an entry that cannot
        be replayed would end all controllers, at every start. So would a record that no snapshot can hold.

        Raises:
            CommandTooLargeError: the command exceeds the bound of one entry, or a record its own; nothing was written.
            MetadataCorruptError: the command cannot be replayed; nothing was written.
            NotLeaderError: the controller epoch is over; nothing was written.
        """
        if not records or self.epoch is None:
            return
        if len(records) > RECORDS_PER_COMMAND_MAX:
            raise CommandTooLargeError(f"{len(records)} records are more than {RECORDS_PER_COMMAND_MAX}")
        begun_ms = self._clock.monotonic_ms()
        # One topic with very many partitions cannot be divided: others run between the steps of its command at least.
        pause = trio.lowlevel.checkpoint if len(records) > INDIVISIBLE_RECORDS else None
        command = Command(controller_epoch=self.epoch, sequence=self._sequence + 1, records=tuple(records))
        if pause is not None:
            await pause()
        data = encode_command(command, self.image.metadata_level)
        if len(data) > RECORD_BYTES_MAX:
            check_records_fit(records, self.image.metadata_level)
        if pause is not None:
            await pause()
        decoded = decode_command(data)
        if pause is not None:
            await pause()
        editor = self.image.edit()
        accepted = editor.replay_command(decoded)
        assert accepted, "the projection refuses the active controller's own command"
        proposal = await self._propose_command(data)
        if proposal is None:
            return
        position = proposal.position
        image = editor.finish_image(offset=position.index, epoch=position.epoch)
        elected = elections(records, self.image)
        self.elections.proposed(position.index, begun_ms, elected.changes)
        for name, partition, leader in elected.unclean:
            self.unclean_elections += 1
            self._log.warning("unclean-election", topic=name, partition=partition, leader=leader)
        self._machine.expect(self.image, image)
        self.image = image
        self._sequence += 1
        self.last_proposal = proposal
        self.commands += 1
        self.records_in_turn += len(records)

    async def _propose_command(self, data: bytes) -> Proposal | None:
        """Proposes; waits while the log is busy. None if the controller epoch ends meanwhile.

        Raises:
            NotLeaderError: the log is led in another epoch.
        """
        while self.epoch is not None:
            try:
                return self._metadata_log.propose_nowait(data, epoch=self.epoch)
            except LogBusyError:
                await self._wait_for_last()
        return None

    async def _wait_for_last(self) -> None:
        last = self.last_proposal
        if last is None or last.position.index <= self._metadata_log.high_watermark:
            await trio.sleep(BUSY_RETRY_MS / 1000)  # busy with something else: others' proposals, or a hand-over
            return
        try:
            await last.wait_committed()
        except (NotLeaderError, OutcomeUnknownError) as error:
            if self.epoch is not None:
                raise NotLeaderError(-1, self.epoch) from error
