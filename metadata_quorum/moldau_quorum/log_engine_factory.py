"""Chooses the engine behind the ``MetadataLog`` port by name (``metadata.quorum.engine``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_quorum.log_engine import EngineName, MetadataLog, MetadataLogConfig, StateMachine

if TYPE_CHECKING:
    from moldau.runtime.environment import Environment


def metadata_log(
    engine: EngineName, environment: Environment, config: MetadataLogConfig, machine: StateMachine
) -> MetadataLog:
    """Makes an engine; it does nothing before its ``run``.

    The modules of an engine are imported only when it is chosen.
    """
    match engine:
        case EngineName.RAFT:
            from moldau_quorum.raft.shell import RaftLog

            return RaftLog(environment, config, machine)
        case EngineName.PYSYNCOBJ:
            from moldau_quorum.pysyncobj_engine.shell import PySyncObjLog

            return PySyncObjLog(environment, config, machine)
