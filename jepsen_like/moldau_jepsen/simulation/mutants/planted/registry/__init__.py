"""All planted bugs by name: what is wrong, in which area, and the profile in which each is hunted.

Four further bugs were tried and left out. Two are harmless because other rules compensate:

- Serving fetches with another leader epoch. A fetch also carries the epoch of its last batch, so a follower whose
  history differs must truncate before its offset counts (KIP-595).
- Acknowledging an append of an old epoch when the high watermark passes it. Pending appends are answered when
  leadership ends, so none of an old epoch remains. ``deposed-leader-acknowledges`` plants an error in that answer.

No run has met the other two:

- A gap in sequence numbers that passes. Moldau's own producer sends nothing after a refused batch except requests
  already in flight. The check protects against other clients; the tests of the log and of the wire cover it.
- A quorum leader that answers reads without confirming its leadership. A leader without a majority steps down at
  about the time at which another can be elected. The quorum's own campaign finds it (``read-without-quorum``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.simulation.mutants.planted.registry.controller import CONTROLLER
from moldau_jepsen.simulation.mutants.planted.registry.coordinators import COORDINATORS
from moldau_jepsen.simulation.mutants.planted.registry.log import LOG
from moldau_jepsen.simulation.mutants.planted.registry.others import OTHERS
from moldau_jepsen.simulation.mutants.planted.registry.quorum import QUORUM
from moldau_jepsen.simulation.mutants.planted.registry.quotas import QUOTAS
from moldau_jepsen.simulation.mutants.planted.registry.replication import REPLICATED
from moldau_jepsen.simulation.mutants.planted.registry.security import SECURITY
from moldau_jepsen.simulation.mutants.planted.registry.share_administration import SHARE_ADMINISTRATION
from moldau_jepsen.simulation.mutants.planted.registry.shares import SHARES
from moldau_jepsen.simulation.mutants.planted.registry.situations import SITUATIONS
from moldau_jepsen.simulation.mutants.planted.registry.streams import STREAMS
from moldau_jepsen.simulation.mutants.planted.registry.tiered import TIERED

if TYPE_CHECKING:
    from moldau_jepsen.simulation.mutants.mutant import Mutant

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        *QUORUM,
        *CONTROLLER,
        *REPLICATED,
        *LOG,
        *TIERED,
        *COORDINATORS,
        *SHARES,
        *SHARE_ADMINISTRATION,
        *STREAMS,
        *SECURITY,
        *QUOTAS,
        *OTHERS,
        *SITUATIONS,
    )
}
