"""The authorizer that a node's configuration asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_quorum.authorization.audit import AuditLog
from moldau_quorum.authorization.authorizer import Authorizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Clock
    from moldau.runtime.telemetry.log import EventLogger
    from moldau_quorum.metadata.image import MetadataImage


def configured_authorizer(
    config: Config, image: Callable[[], MetadataImage], clock: Clock, logger: EventLogger
) -> Authorizer | None:
    """Returns the authorizer of a node; None if ``authorizer.class.name`` is empty."""
    if not config.get_str("authorizer.class.name"):
        return None
    return Authorizer(
        image,
        super_users=super_users(config.get_str("super.users")),
        allows_without_acl=config.get_bool("allow.everyone.if.no.acl.found"),
        audit=AuditLog(logger, clock.monotonic_ms).note,
    )


def super_users(text: str) -> frozenset[str]:
    """Returns the principals of ``super.users``: ``User:a;User:b``."""
    return frozenset(each.strip() for each in text.split(";") if each.strip())
