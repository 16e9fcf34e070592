"""Bugs in how replicas whose histories differ come together again."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from moldau_broker.log.partition.epoch_cache import LeaderEpochCache
from moldau_broker.replication.follower import FollowerFetcher
from moldau_broker.server.data_path.follower_positions import FollowerPositions
from moldau_broker.server.replicas.replica_manager import ReplicaManager

if TYPE_CHECKING:
    from moldau_broker.log.values import EpochEndOffset
    from moldau_jepsen.planted_bug import Patch


def divergence_not_detected() -> list[Patch]:
    return [(FollowerPositions, "diverging", lambda self, partition, wanted: None)]


def divergence_ignored() -> list[Patch]:
    original = FollowerFetcher._step

    def step(self: FollowerFetcher, followed: object, answer: object, now_ms: float) -> object:
        plain = dataclasses.replace(answer, diverging_epoch=-1, diverging_end_offset=-1)  # type: ignore[type-var]
        return original(self, followed, plain, now_ms)  # type: ignore[arg-type]

    return [(FollowerFetcher, "_step", step)]


def truncates_to_watermark() -> list[Patch]:
    original = ReplicaManager.follower_truncated

    def follower_truncated(self: ReplicaManager, partition: object, offset: int) -> None:
        original(self, partition, partition.replica.high_watermark)  # type: ignore[attr-defined, arg-type]

    return [
        (ReplicaManager, "follower_truncated", follower_truncated),
        (FollowerPositions, "agrees", lambda self, partition, wanted: True),
    ]


def truncates_too_little() -> list[Patch]:
    original = LeaderEpochCache.end_offset_for

    def end_offset_for(self: LeaderEpochCache, leader_epoch: int, log_end_offset: int) -> EpochEndOffset:
        found = original(self, leader_epoch, log_end_offset)
        if found.end_offset >= 0 and found.end_offset < log_end_offset:
            return dataclasses.replace(found, end_offset=found.end_offset + 1)
        return found

    return [(LeaderEpochCache, "end_offset_for", end_offset_for)]
