"""Feature levels of the cluster (KIP-584, KIP-778, KIP-1022).

A level may be raised when every registered broker and every controller that votes supports it. ``metadata.version``
(``records``) may be lowered safely where nothing is forgotten by it; with the unsafe kind of update what the lower
level has no words for is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from moldau_quorum.controller.context import ELR_FEATURE, MIN_INSYNC_REPLICAS, Context, RefusedError, Result
from moldau_quorum.directory_ids import is_reserved
from moldau_quorum.image import RESOURCE_BROKER
from moldau_quorum.records import (
    METADATA_LEVEL_DIRECTORIES,
    METADATA_LEVEL_FIRST,
    METADATA_LEVEL_LATEST,
    METADATA_VERSION,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau_quorum.image import MetadataImage

TRANSACTION_VERSION: Final = "transaction.version"

SUPPORTED_FEATURES: Final[dict[str, tuple[int, int]]] = {
    METADATA_VERSION: (METADATA_LEVEL_FIRST, METADATA_LEVEL_LATEST),
    "group.version": (0, 1),
    TRANSACTION_VERSION: (0, 1),
    ELR_FEATURE: (0, 1),
}
"""Lowest and highest level that this version of Moldau supports.

From ``transaction.version`` 2 on, Kafka's clients add no partitions to their transactions: brokers do it when a batch
or an offset comes, and the end of each transaction raises the epoch (KIP-890, EndTxn 5). Brokers here do not.
"""

FORMER_LEVELS: Final[dict[str, int]] = {TRANSACTION_VERSION: 2}
"""Levels that clusters were given before this version, though nothing went by them: a log that has them is read, and
its active controller goes down to what is supported."""

INITIAL_FEATURES: Final[dict[str, int]] = {
    METADATA_VERSION: METADATA_LEVEL_LATEST,
    "group.version": 1,
    TRANSACTION_VERSION: 1,
    ELR_FEATURE: 1,
}
"""Levels that a new cluster starts with."""

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def initial_features(supported: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Levels that a new cluster starts with, its first controller supporting these."""
    return {name: min(level, supported[name][1]) for name, level in sorted(INITIAL_FEATURES.items())}


def unsupported_level(features: Mapping[str, int], supported: Mapping[str, tuple[int, int]]) -> str | None:
    """What a node cannot follow in a cluster's levels, in words; None when it can follow all."""
    for name, level in sorted(features.items()):
        lowest, highest = supported.get(name, (0, 0))
        if not lowest <= level <= max(highest, FORMER_LEVELS.get(name, 0)):
            return f"the cluster is at {name} {level}, this node supports {lowest} to {highest} only"
    return None


def lowered_features(features: Mapping[str, int], supported: Mapping[str, tuple[int, int]]) -> list[FeatureLevelRecord]:
    """What an active controller that supports these changes in a cluster that has ``FORMER_LEVELS``."""
    return [
        FeatureLevelRecord(name=name, level=supported[name][1])
        for name, level in sorted(features.items())
        if name in FORMER_LEVELS and level > supported[name][1]
    ]


def unsupported_feature(offered: tuple[tuple[str, int, int], ...], image: MetadataImage) -> str | None:
    """The first finalised feature whose level a broker cannot follow; None when it can follow all.

    A feature that the broker does not mention counts as unsupported only above level 0 of ``metadata.version``.
    """
    ranges = {name: (lowest, highest) for name, lowest, highest in offered}
    for name, level in sorted(image.features.items()):
        if name in ranges:
            lowest, highest = ranges[name]
            if not lowest <= level <= highest:
                return name
        elif name == METADATA_VERSION and offered:
            return name
    return None


def update_features(
    request: UpdateFeaturesRequest, image: MetadataImage, context: Context
) -> Result[UpdateFeaturesResponse]:
    """Raises or lowers levels; all of the request or nothing."""
    records: list[MetadataRecord] = []
    results: list[UpdatableFeatureResult] = []
    failure: RefusedError | None = None
    for update in request.feature_updates:
        try:
            changes = _update(update, image, context)
        except RefusedError as refusal:
            failure = failure or refusal
            results.append(
                UpdatableFeatureResult(feature=update.feature, error_code=refusal.code, error_message=refusal.message)
            )
            continue
        records.extend(changes)
        results.append(UpdatableFeatureResult(feature=update.feature, error_code=ErrorCode.NONE, error_message=None))
    if failure is not None:
        return Result(
            response=UpdateFeaturesResponse(error_code=failure.code, error_message=failure.message, results=results)
        )
    done = () if request.validate_only else tuple(records)
    return Result(records=done, response=UpdateFeaturesResponse(error_message=None, results=results))


def _update(update: FeatureUpdateKey, image: MetadataImage, context: Context) -> list[MetadataRecord]:
    name, level = update.feature, update.max_version_level
    if name not in SUPPORTED_FEATURES:
        raise RefusedError(
            ErrorCode.FEATURE_UPDATE_FAILED,
            f"feature {name!r} is unknown; known are {', '.join(sorted(SUPPORTED_FEATURES))}",
        )
    lowest, highest = SUPPORTED_FEATURES[name]
    if not (lowest <= level <= highest or (level == 0 and lowest == 0)):
        raise RefusedError(ErrorCode.FEATURE_UPDATE_FAILED, f"level {level} of {name} is outside {lowest}..{highest}")
    present = image.features.get(name, 0)
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"upgrade type {update.upgrade_type} is unknown")
    if level < present and update.upgrade_type == UPGRADE and not update.allow_downgrade:
        raise RefusedError(
            ErrorCode.FEATURE_UPDATE_FAILED, f"{name} is at {present}: going down to {level} must be asked for"
        )
    if level == present:
        return []
    for _, broker in sorted(image.brokers.items()):
        if broker.features:
            _check_node(f"broker {broker.broker_id}", name, level, {f: (low, high) for f, low, high in broker.features})
    for controller_id, ranges in sorted(context.controller_features.items()):
        _check_node(f"controller {controller_id}", name, level, ranges)
    if name == METADATA_VERSION and level < present and update.upgrade_type != UNSAFE_DOWNGRADE:
        forgotten = forgotten_at(level, image)
        if forgotten is not None:
            raise RefusedError(
                ErrorCode.FEATURE_UPDATE_FAILED,
                f"level {level} would forget {forgotten}: this takes an unsafe downgrade",
            )
    change = FeatureLevelRecord(name=name, level=level)
    return [change, *_eligible_replicas_records(level, image, context)] if name == ELR_FEATURE else [change]


def _check_node(node: str, name: str, level: int, ranges: Mapping[str, tuple[int, int]] | None) -> None:
    """Raises ``RefusedError`` for a node that does not support a level, or did not say.

    A feature that a node never mentions means nothing to it, but for ``metadata.version``, which all must read.
    """
    if ranges is None:
        raise RefusedError(ErrorCode.FEATURE_UPDATE_FAILED, f"{node} did not say which levels of {name} it supports")
    if level == 0 or (name not in ranges and name != METADATA_VERSION):
        return
    low, high = ranges.get(name, (0, 0))
    if not low <= level <= high:
        raise RefusedError(ErrorCode.FEATURE_UPDATE_FAILED, f"{node} supports levels {low}..{high} of {name} only")


def forgotten_at(level: int, image: MetadataImage) -> str | None:
    """What is recorded that a lower ``metadata.version`` has no words for, in words; None if nothing.

    The directory of a replica may go where it is known without being recorded: its broker has one directory only.
    """
    if level >= METADATA_LEVEL_DIRECTORIES:
        return None
    for name in sorted(image.topics_by_name):
        topic = image.topics_by_name[name]
        for partition_id in range(len(topic.partitions)):
            partition = topic.partitions[partition_id]
            for replica, directory in zip(partition.replicas, partition.directories, strict=False):
                broker = image.brokers.get(replica)
                if is_reserved(directory) and image.replica_online(partition, replica):
                    continue
                if broker is None or broker.log_dirs != (directory,):
                    return f"in which log directory broker {replica} holds {name}-{partition_id}"
    return None


def _eligible_replicas_records(level: int, image: MetadataImage, context: Context) -> list[MetadataRecord]:
    """What goes with turning eligible leader replicas on or off (KIP-966)."""
    if level > 0:
        return min_insync_records(image, context)
    for topic in image.topics_by_id.values():
        for partition in topic.partitions.values():
            if partition.elr or not partition.isr:
                raise RefusedError(
                    ErrorCode.FEATURE_UPDATE_FAILED,
                    f"topic {topic.name!r} has partitions that need their eligible leader replicas: "
                    "bring their brokers back first",
                )
    return []


def min_insync_records(image: MetadataImage, context: Context) -> list[MetadataRecord]:
    """Writes ``min.insync.replicas`` of all brokers down where it is not, so that every node goes by the same value."""
    if MIN_INSYNC_REPLICAS in image.config(RESOURCE_BROKER, ""):
        return []
    return [
        ConfigRecord(
            resource_type=RESOURCE_BROKER,
            resource_name="",
            name=MIN_INSYNC_REPLICAS,
            value=str(context.settings.min_insync_replicas),
        )
    ]
