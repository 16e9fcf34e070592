"""SCRAM credentials of the metadata image, as listeners look them up. Pure."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from moldau.runtime.sasl.core.scram import ITERATIONS_DEFAULT, ScramKeys
from moldau_quorum.metadata.records import UserScramCredentialRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau_quorum.metadata.image import MetadataImage

LOOKED_AT_MAX: Final = 32


class ImageCredentials:
    """The credentials of the newest image; those of the bootstrap until the image knows its cluster.

    A node that starts has an empty image until it has talked to the quorum, for which it may need a credential itself.
    """

    def __init__(
        self, image: Callable[[], MetadataImage], bootstrap: Mapping[tuple[str, int], ScramKeys] | None = None
    ) -> None:
        """``image`` returns the newest one; ``bootstrap`` are keys by user and number of the mechanism."""
        self._image = image
        self._bootstrap = dict(bootstrap or {})

    def keys(self, user: str, mechanism: int) -> ScramKeys | None:
        """Returns the keys of a user, None if there are none."""
        image = self._image()
        if not image.cluster_id:
            return self._bootstrap.get((user, mechanism))
        record = image.scram_credentials.get((user, mechanism))
        return None if record is None else _keys(record)

    def usual_iterations(self, mechanism: int) -> int:
        """Returns the iteration count of one of the first credentials, the same until they change."""
        credentials = self._image().scram_credentials
        for name in islice(credentials, LOOKED_AT_MAX):
            if name[1] == mechanism:
                return credentials[name].iterations
        return ITERATIONS_DEFAULT


def _keys(record: UserScramCredentialRecord) -> ScramKeys:
    return ScramKeys(
        salt=record.salt,
        iterations=record.iterations,
        stored_key=record.stored_key,
        server_key=record.server_key,
    )


def bootstrap_records(keys: Mapping[tuple[str, int], ScramKeys]) -> list[UserScramCredentialRecord]:
    """Returns the records with which a new cluster begins."""
    return [
        UserScramCredentialRecord(
            user=user,
            mechanism=mechanism,
            salt=each.salt,
            stored_key=each.stored_key,
            server_key=each.server_key,
            iterations=each.iterations,
        )
        for (user, mechanism), each in sorted(keys.items())
    ]
