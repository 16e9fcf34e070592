"""Bugs in elections of leaders and in changes of the ISR, as the controller decides them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from moldau_quorum.controller import partitions
from moldau_quorum.controller.partition_change import Election, PartitionChange

if TYPE_CHECKING:
    from moldau_jepsen.simulation.planted import Patch


def unclean_election() -> list[Patch]:
    original = PartitionChange.build

    def build(self: PartitionChange) -> object:
        self.election = Election.UNCLEAN
        return original(self)

    return [(PartitionChange, "build", build)]


def elects_any_replica() -> list[Patch]:
    original = PartitionChange._elect

    def elect(self: PartitionChange, replicas: tuple[int, ...], isr: tuple[int, ...]) -> object:
        elected = original(self, replicas, isr)
        if elected.leader == self.partition.leader:
            return elected
        for replica in replicas:
            if self.acceptable(replica) and replica != self.partition.leader:
                return dataclasses.replace(elected, leader=replica)
        return elected

    return [(PartitionChange, "_elect", elect)]


def stale_isr_change() -> list[Patch]:
    return [(partitions, "_check_epochs", lambda broker_id, partition, data: None)]
