"""Levels of the cluster's features, as ApiVersions reports them. A value without behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.protocol.messages.api_versions import ApiVersionsResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizedFeatures:
    """The levels of the cluster's features as a peer knew them (KIP-584); epoch -1 if it did not say any."""

    epoch: int = -1
    levels: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, response: ApiVersionsResponse) -> FinalizedFeatures:
        """Reads the response to ApiVersions."""
        return cls(
            epoch=response.finalized_features_epoch,
            levels={feature.name: feature.max_version_level for feature in response.finalized_features},
        )
