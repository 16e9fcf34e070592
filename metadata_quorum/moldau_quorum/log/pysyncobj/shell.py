"""The ``pysyncobj`` engine behind the ``MetadataLog`` port: the shell of the other engine around another node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_quorum.log.pysyncobj.node import PySyncObjNode
from moldau_quorum.log.raft.shell import RaftLog

if TYPE_CHECKING:
    from moldau_quorum.log.raft.engine_node import EngineNode


class PySyncObjLog(RaftLog):
    """See ``MetadataLog``. The voters are fixed: membership changes raise ``MembershipChangeError``."""

    def _open_node(self, seed: int, now_ms: float) -> EngineNode:
        return PySyncObjNode(self._environment.disk, self._config, self._machine, seed=seed, now_ms=now_ms)
