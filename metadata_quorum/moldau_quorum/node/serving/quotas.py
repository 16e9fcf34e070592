"""The quotas that a controller enforces: how many partitions a client creates and deletes a second (KIP-599)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.quotas.mutations import MutationQuotas
from moldau_quorum.quotas.precedence import QuotaIndex
from moldau_quorum.quotas.rate import Windows

if TYPE_CHECKING:
    from moldau.protocol.framing import RequestHeader
    from moldau.protocol.schema import Request
    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Clock
    from moldau.runtime.sasl.core.identity import Identity
    from moldau_quorum.quotas.mutations import MutationAllowance


class ControllerQuotas:
    """Quotas of one controller. Invariant: ``_index`` is that of ``_image``."""

    def __init__(self, clock: Clock, config: Config) -> None:
        """No quota is set."""
        self._clock = clock
        size_ms = float(config.get_int("controller.quota.window.size.seconds") * 1_000)
        self._mutations = MutationQuotas(Windows(config.get_int("controller.quota.window.num"), size_ms))
        self._image = MetadataImage()
        self._index = QuotaIndex()

    def follow(self, image: MetadataImage) -> None:
        """Takes the quotas of the newest committed image."""
        before, self._image = self._image.quotas, image
        if before is not image.quotas:
            self._index = self._index.changed(image.quotas, before.changed_keys(image.quotas))

    def allowance(self, request: Request, asker: Identity, header: RequestHeader) -> MutationAllowance | None:
        """Returns what a request may change; None if no quota limits it."""
        return self._mutations.allowance(
            self._index,
            asker.name,
            header.client_id or "",
            api_key=request.__api_key__,
            version=header.api_version,
            now_ms=self._clock.monotonic_ms(),
        )

    def throttle_ms(self, allowance: MutationAllowance) -> int:
        """Returns for how many milliseconds the sender must pause."""
        return allowance.throttle_ms(self._clock.monotonic_ms())
