"""Feature levels of the cluster (KIP-584, KIP-778, KIP-1022).

A level may be raised when every registered broker and every voter supports it. ``metadata.version`` (``records``) may
be lowered safely if no metadata is lost. An unsafe downgrade deletes the metadata that the lower level cannot
represent.
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
from moldau.runtime.config.keys.groups.group import DEAD_LETTER_TOPIC
from moldau_quorum.controller.context import ELR_FEATURE, MIN_INSYNC_REPLICAS, Context, RefusedError, Result
from moldau_quorum.controller.entities.config_checks import is_tiered
from moldau_quorum.metadata.directory_ids import is_reserved
from moldau_quorum.metadata.image import RESOURCE_BROKER, RESOURCE_GROUP, RESOURCE_TOPIC
from moldau_quorum.metadata.records import (
    METADATA_LEVEL_CORDONS,
    METADATA_LEVEL_DIRECTORIES,
    METADATA_LEVEL_FIRST,
    METADATA_LEVEL_LATEST,
    METADATA_LEVEL_TIERED,
    METADATA_LEVEL_TOKENS,
    METADATA_VERSION,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau_quorum.metadata.image import MetadataImage

GROUP_VERSION: Final = "group.version"
TRANSACTION_VERSION: Final = "transaction.version"
SHARE_VERSION: Final = "share.version"
STREAMS_VERSION: Final = "streams.version"
SHARE_LEVEL_QUEUES: Final = 2
"""The first level of ``share.version`` at which share groups have dead letter queues."""

SUPPORTED_FEATURES: Final[dict[str, tuple[int, int]]] = {
    METADATA_VERSION: (METADATA_LEVEL_FIRST, METADATA_LEVEL_LATEST),
    GROUP_VERSION: (0, 1),
    TRANSACTION_VERSION: (0, 2),
    SHARE_VERSION: (0, 2),
    STREAMS_VERSION: (0, 1),
    ELR_FEATURE: (0, 1),
}
"""Lowest and highest level that this version of Moldau supports.

At ``group.version`` 1 brokers serve groups of the consumer protocol (KIP-848), at ``share.version`` 1 share groups
(KIP-932) and at 2 their dead letter queues (KIP-1191), at ``streams.version`` 1 streams groups (KIP-1071).

From ``transaction.version`` 1 on, coordinators write all fields of a transaction's state (TransactionLogValue 1). At
level 2 every transaction has an epoch of its own, and brokers add partitions to it (KIP-890): clients send no
AddPartitionsToTxn, because they read this level in ApiVersions.
"""

INITIAL_FEATURES: Final[dict[str, int]] = {
    METADATA_VERSION: METADATA_LEVEL_LATEST,
    GROUP_VERSION: 1,
    TRANSACTION_VERSION: 2,
    SHARE_VERSION: 2,
    STREAMS_VERSION: 1,
    ELR_FEATURE: 1,
}
"""The levels of a new cluster."""

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
UNKNOWN: Final = (0, 0)
"""The levels that a node supports of a feature that it does not know."""


def initial_features(supported: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Returns the levels of a new cluster whose first controller has these supported ranges."""
    return {name: min(level, supported[name][1]) for name, level in sorted(INITIAL_FEATURES.items())}


def unsupported_level(features: Mapping[str, int], supported: Mapping[str, tuple[int, int]]) -> str | None:
    """Describes the first of a cluster's levels that a node does not support; None if it supports all."""
    name = _first_unsupported(features, supported)
    if name is None:
        return None
    lowest, highest = supported.get(name, UNKNOWN)
    return f"the cluster is at {name} {features[name]}, this node supports {lowest} to {highest} only"


def unsupported_feature(offered: tuple[tuple[str, int, int], ...], image: MetadataImage) -> str | None:
    """Returns the first feature whose level a broker does not support; None if it supports all levels.

    A feature that the broker does not mention is unknown to it: it supports level 0 only (KIP-1022).
    """
    ranges = {name: (lowest, highest) for name, lowest, highest in offered}
    levels = {**dict.fromkeys(ranges, 0), **image.features, METADATA_VERSION: image.metadata_level}
    return _first_unsupported(levels, ranges)


def _first_unsupported(levels: Mapping[str, int], ranges: Mapping[str, tuple[int, int]]) -> str | None:
    for name, level in sorted(levels.items()):
        lowest, highest = ranges.get(name, UNKNOWN)
        if not lowest <= level <= highest:
            return name
    return None


def update_features(
    request: UpdateFeaturesRequest, image: MetadataImage, context: Context
) -> Result[UpdateFeaturesResponse]:
    """Changes levels of features; the request succeeds or fails as a whole.

    Of a feature that is named twice the last level counts.
    """
    records: list[MetadataRecord] = []
    results: list[UpdatableFeatureResult] = []
    failure: RefusedError | None = None
    for update in {update.feature: update for update in request.feature_updates}.values():
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
            ErrorCode.INVALID_UPDATE_VERSION,
            f"feature {name!r} is unknown; known are {', '.join(sorted(SUPPORTED_FEATURES))}",
        )
    lowest, highest = SUPPORTED_FEATURES[name]
    if not (lowest <= level <= highest or (level == 0 and lowest == 0)):
        raise RefusedError(ErrorCode.INVALID_UPDATE_VERSION, f"level {level} of {name} is outside {lowest}..{highest}")
    present = image.features.get(name, 0)
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise RefusedError(ErrorCode.INVALID_UPDATE_VERSION, f"upgrade type {update.upgrade_type} is unknown")
    is_downgrade = update.upgrade_type != UPGRADE or update.allow_downgrade
    if level != present and is_downgrade != (level < present):
        raise RefusedError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name} is at {present}: lowering it to {level} needs a downgrade request"
            if level < present
            else f"{name} is at {present}: a downgrade request does not raise it to {level}",
        )
    if level == present:
        return []
    for _, broker in sorted(image.brokers.items()):
        _check_node(f"broker {broker.broker_id}", name, level, {f: (low, high) for f, low, high in broker.features})
    for controller_id, ranges in sorted(context.controller_features.items()):
        _check_node(f"controller {controller_id}", name, level, ranges)
    if name == METADATA_VERSION and level < present and update.upgrade_type != UNSAFE_DOWNGRADE:
        forgotten = forgotten_at(level, image) or _hidden_at(level, image)
        if forgotten is not None:
            raise RefusedError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"level {level} would forget {forgotten}: this needs an unsafe downgrade",
            )
    if name == SHARE_VERSION and level < SHARE_LEVEL_QUEUES and update.upgrade_type != UNSAFE_DOWNGRADE:
        _check_queues(level, image)
    change = FeatureLevelRecord(name=name, level=level)
    return [change, *_eligible_replicas_records(level, image, context)] if name == ELR_FEATURE else [change]


def _check_queues(level: int, image: MetadataImage) -> None:
    """Checks that no group has a dead letter queue.

    Raises:
        RefusedError: one has: below the level brokers would drop its dead letters without a line of the log.
    """
    for (kind, name), values in sorted(image.configs.items()):
        if kind == RESOURCE_GROUP and values.get(DEAD_LETTER_TOPIC):
            raise RefusedError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"level {level} would end the dead letter queue of group {name!r}: this needs an unsafe downgrade",
            )


def check_queue(before: Mapping[str, str], after: Mapping[str, str], image: MetadataImage) -> None:
    """Checks that a group may name a dead letter queue; one that it names already may stay (KIP-1191).

    Raises:
        RefusedError: INVALID_CONFIG, brokers would drop its dead letters without a line of the log.
    """
    topic, level = after.get(DEAD_LETTER_TOPIC), image.features.get(SHARE_VERSION, 0)
    if topic and topic != before.get(DEAD_LETTER_TOPIC) and level < SHARE_LEVEL_QUEUES:
        raise RefusedError(
            ErrorCode.INVALID_CONFIG,
            f"{DEAD_LETTER_TOPIC} = {topic!r}: needs {SHARE_VERSION} {SHARE_LEVEL_QUEUES}; the cluster is at {level}",
        )


def _check_node(node: str, name: str, level: int, ranges: Mapping[str, tuple[int, int]] | None) -> None:
    """Checks that a node supports a level. Of a feature that it does not mention it supports level 0 only.

    Raises:
        RefusedError: the node does not support the level, or did not report its levels.
    """
    if ranges is None:
        raise RefusedError(ErrorCode.INVALID_UPDATE_VERSION, f"{node} did not say which levels of {name} it supports")
    low, high = ranges.get(name, UNKNOWN)
    if not low <= level <= high:
        raise RefusedError(ErrorCode.INVALID_UPDATE_VERSION, f"{node} supports levels {low}..{high} of {name} only")


def forgotten_at(level: int, image: MetadataImage) -> str | None:
    """Describes recorded metadata that a lower ``metadata.version`` cannot represent; None if there is none.

    The directory of a replica may be deleted if its broker has only one, because it is then known without a record.
    """
    if level < METADATA_LEVEL_CORDONS:
        for broker_id in sorted(image.brokers):
            if image.brokers[broker_id].cordoned_log_dirs:
                return f"the cordoned log directories of broker {broker_id}"
    if level < METADATA_LEVEL_TOKENS and len(image.delegation_tokens):
        return f"{len(image.delegation_tokens)} delegation tokens"
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


def _hidden_at(level: int, image: MetadataImage) -> str | None:
    """Describes records that brokers of versions with a lower ``metadata.version`` hide; None if there are none."""
    if level < METADATA_LEVEL_TIERED:
        for name in sorted(image.topics_by_name):
            if is_tiered(image.config(RESOURCE_TOPIC, name)):
                return f"the remote records of topic {name!r}"
    return None


def _eligible_replicas_records(level: int, image: MetadataImage, context: Context) -> list[MetadataRecord]:
    """Returns the further records of turning eligible leader replicas on or off (KIP-966).

    A leader with a lower ``min.insync.replicas`` than the controller's would acknowledge records that eligible replicas
    lack.
    """
    if level > 0:
        own = [name for (kind, name), values in image.configs.items() if _has_own_minimum(kind, name, values)]
        if own:
            raise RefusedError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"{MIN_INSYNC_REPLICAS} is set for broker {min(own, key=int)}, and must not differ between brokers at "
                f"{ELR_FEATURE} {level}: remove it there, and set it for a topic or for all brokers",
            )
        return min_insync_records(image, context)
    for topic in image.topics_by_id.values():
        for partition in topic.partitions.values():
            if partition.elr or not partition.isr:
                raise RefusedError(
                    ErrorCode.INVALID_UPDATE_VERSION,
                    f"topic {topic.name!r} has partitions that need their eligible leader replicas: "
                    "bring their brokers back first",
                )
    return []


def _has_own_minimum(resource_type: int, name: str, values: Mapping[str, str]) -> bool:
    return resource_type == RESOURCE_BROKER and name != "" and MIN_INSYNC_REPLICAS in values


def min_insync_records(image: MetadataImage, context: Context) -> list[MetadataRecord]:
    """Makes the controller's ``min.insync.replicas`` the default of all brokers if there is no such default.

    If the controller's file does not set it, no record is written, so that the built-in default of 1 does not replace
    the values in the brokers' files.
    """
    minimum = context.settings.min_insync_replicas
    if minimum is None or MIN_INSYNC_REPLICAS in image.config(RESOURCE_BROKER, ""):
        return []
    return [
        ConfigRecord(
            resource_type=RESOURCE_BROKER,
            resource_name="",
            name=MIN_INSYNC_REPLICAS,
            value=str(minimum),
        )
    ]
