"""SCRAM credentials of the metadata image, as listeners look them up. Pure."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from moldau.runtime.config.sasl import SCRAM_MECHANISMS
from moldau.runtime.sasl.core.scram import ITERATIONS_DEFAULT, ScramKeys
from moldau_quorum.metadata.delegation_tokens import TokenLogins
from moldau_quorum.metadata.records import UserScramCredentialRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.runtime.sasl.core.scram import TokenKeys
    from moldau_quorum.metadata.image import MetadataImage

LOOKED_AT_MAX: Final = 32
_NAMES: Final = {number: name for name, number in SCRAM_MECHANISMS.items()}


class ImageCredentials:
    """The credentials of the newest image; those of the bootstrap until the image knows its cluster.

    A node that starts has an empty image until it has talked to the quorum, for which it may need a credential itself.
    """

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        bootstrap: Mapping[tuple[str, int], ScramKeys] | None = None,
        token_secret: bytes | None = None,
    ) -> None:
        """``image`` returns the newest one; ``bootstrap`` are keys by user and number of the mechanism.

        ``token_secret`` is that of delegation tokens.
        """
        self._image = image
        self._tokens = TokenLogins(token_secret)
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

    def token(self, token_id: str, mechanism: int, wall_ms: int) -> TokenKeys | None:
        """Returns a delegation token, None if there is none or it has expired."""
        return self._tokens.keys(self._image(), token_id, _NAMES[mechanism], wall_ms)


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
