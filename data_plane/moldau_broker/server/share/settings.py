"""The configuration of a share group: its own keys, else the broker's, else Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.runtime.config.declaration import ConfigError
from moldau.runtime.config.schemas import GROUP_CONFIG
from moldau.values import reset_duration_ms
from moldau_broker.server.share.core.values import ShareLimits
from moldau_broker.server.share.dead_letters.queue import DeadLetterQueue, dead_letter_queue
from moldau_quorum.controller.cluster.features import SHARE_LEVEL_QUEUES, SHARE_VERSION
from moldau_quorum.metadata.image import RESOURCE_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.config import Config
    from moldau_quorum.metadata.image import MetadataImage

KNOWN_MAX = 10_000
"""Bound of the groups whose settings are kept."""
_RESET = "share.auto.offset.reset"
_PREFIXES = ("share.", "errors.deadletterqueue.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupSettings:
    """The settings with which a share group reads."""

    limits: ShareLimits
    reads_committed: bool
    renew_allowed: bool
    reset: str
    """``share.auto.offset.reset``: earliest, latest or by_duration:<ISO 8601 duration>."""
    dead_letter_queue: DeadLetterQueue | None = None
    """None if the group has none, or the cluster's features do not allow one."""

    @property
    def reset_duration_ms(self) -> int | None:
        """The duration before now at which a group begins; None if it begins at an end of the log."""
        return reset_duration_ms(self.reset)


def group_settings(broker: Config, image: MetadataImage, group_id: str) -> ShareGroupSettings:
    """Returns the settings of a group by the newest metadata."""
    given = image.config(RESOURCE_GROUP, group_id)
    own = {name: value for name, value in given.items() if name.startswith(_PREFIXES)}
    try:
        config = GROUP_CONFIG.parse(own)
    except ConfigError:  # the metadata are older than a check of this value
        config = GROUP_CONFIG.parse({name: value for name, value in own.items() if name != _RESET})

    def limit(name: str) -> int:
        return config.get_int(name) if config.is_set(name) else broker.get_int(f"group.{name}")

    has_queues = image.features.get(SHARE_VERSION, 0) >= SHARE_LEVEL_QUEUES
    queue = dead_letter_queue(config, broker) if has_queues else None
    return ShareGroupSettings(
        limits=ShareLimits(
            delivery_count_max=limit("share.delivery.count.limit"),
            record_locks_max=limit("share.partition.max.record.locks"),
            lock_duration_ms=limit("share.record.lock.duration.ms"),
            writes_dead_letters=queue is not None,
        ),
        reads_committed=config.get_str("share.isolation.level") == "read_committed",
        renew_allowed=config.get_bool("share.renew.acknowledge.enable"),
        reset=config.get_str(_RESET),
        dead_letter_queue=queue,
    )


class CachedSettings:
    """The settings of groups, computed once for each image of the metadata."""

    def __init__(self, broker: Callable[[], Config], image: Callable[[], MetadataImage]) -> None:
        self._broker = broker
        self._image = image
        self._of: MetadataImage | None = None
        self._known: dict[str, ShareGroupSettings] = {}

    def __call__(self, group_id: str) -> ShareGroupSettings:
        """Returns the settings of a group."""
        image = self._image()
        if self._of is not image or len(self._known) >= KNOWN_MAX:
            self._of, self._known = image, {}
        found = self._known.get(group_id)
        if found is None:
            found = self._known[group_id] = group_settings(self._broker(), image, group_id)
        return found
