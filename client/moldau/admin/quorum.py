"""The admin client's calls about the metadata quorum and feature levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from moldau.admin.admin import raise_failures
from moldau.admin.transactions import TransactionsAdmin
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse, Listener
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_DIRECTORY = UUID(int=0)
"""Directory id of voters that are known by their id alone."""

_UPGRADE = 1
_SAFE_DOWNGRADE = 2
_UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDescription:
    """A feature: the levels that the answering node knows, and the one that is in force (0: none)."""

    name: str
    level_min: int
    level_max: int
    level: int


def _raise(code: int, message: str | None) -> None:
    found = ErrorCode.of(code)
    if found is not ErrorCode.NONE:
        raise KafkaError(found, message)


class QuorumAdmin(TransactionsAdmin):
    """Voters and feature levels."""

    async def add_voter(
        self, voter_id: int, host: str, port: int, *, directory_id: UUID = NO_DIRECTORY, listener: str = "CONTROLLER"
    ) -> None:
        """Lets a running controller vote (KIP-853). Returns when it has caught up and the change is committed.

        Raises ``KafkaError``: DUPLICATE_VOTER, INVALID_REQUEST, REQUEST_TIMED_OUT (it did not catch up).
        """
        request = AddRaftVoterRequest(
            timeout_ms=int(self._timeout_ms),
            voter_id=voter_id,
            voter_directory_id=directory_id,
            listeners=[Listener(name=listener, host=host, port=port)],
        )
        # Not tried again: the second try of one that took effect would be told of a duplicate.
        response = await self._ask(AddRaftVoterResponse, request)
        _raise(response.error_code, response.error_message)

    async def remove_voter(self, voter_id: int, *, directory_id: UUID = NO_DIRECTORY) -> None:
        """Takes a voter's vote away; the change is committed on return. Raises ``KafkaError``: VOTER_NOT_FOUND ..."""
        request = RemoveRaftVoterRequest(voter_id=voter_id, voter_directory_id=directory_id)
        response = await self._ask(RemoveRaftVoterResponse, request)
        _raise(response.error_code, response.error_message)

    async def describe_features(self) -> list[FeatureDescription]:
        """Returns the features that a broker supports, by name."""
        request = ApiVersionsRequest(client_software_name="moldau", client_software_version="1")
        response = await self._ask(ApiVersionsResponse, request)
        _raise(response.error_code, None)
        levels = {each.name: each.max_version_level for each in response.finalized_features}
        return [
            FeatureDescription(
                name=each.name,
                level_min=each.min_version,
                level_max=each.max_version,
                level=levels.get(each.name, 0),
            )
            for each in sorted(response.supported_features, key=lambda each: each.name)
        ]

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        allow_downgrade: bool = False,
        unsafe: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Puts feature levels into force, all or none.

        Levels go down with ``allow_downgrade`` where nothing is forgotten by it, and with ``unsafe`` also where the
        lower level has no words for something that is recorded. Raises ``KafkaError``, ``AdminError``.
        """
        downgrade = _UNSAFE_DOWNGRADE if unsafe else _SAFE_DOWNGRADE
        request = UpdateFeaturesRequest(
            timeout_ms=int(self._timeout_ms),
            feature_updates=[
                FeatureUpdateKey(
                    feature=name,
                    max_version_level=level,
                    allow_downgrade=allow_downgrade or unsafe,
                    upgrade_type=downgrade if allow_downgrade or unsafe else _UPGRADE,
                )
                for name, level in sorted(levels.items())
            ],
            validate_only=validate_only,
        )
        response = await self._ask(UpdateFeaturesResponse, request, code_of=lambda each: ErrorCode.of(each.error_code))
        _raise(response.error_code, response.error_message)
        raise_failures(
            {
                each.feature: KafkaError(ErrorCode.of(each.error_code), each.error_message)
                for each in response.results
                if each.error_code
            }
        )
