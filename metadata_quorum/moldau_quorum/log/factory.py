"""Chooses the engine behind the ``MetadataLog`` port by name (``metadata.quorum.engine``)."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from moldau.runtime.config import ConfigError
from moldau_quorum.log.port import EngineName, MetadataLog, MetadataLogConfig, StateMachine

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Environment


def metadata_log(
    engine: EngineName, environment: Environment, config: MetadataLogConfig, machine: StateMachine
) -> MetadataLog:
    """Makes an engine; it does nothing before its ``run``.

    The modules of an engine are imported only when it is chosen.

    Raises:
        ConfigError: The engine's library is not installed.
    """
    match engine:
        case EngineName.RAFT:
            from moldau_quorum.log.raft.shell import RaftLog

            return RaftLog(environment, config, machine)
        case EngineName.PYSYNCOBJ:
            if importlib.util.find_spec("pysyncobj") is None:
                raise ConfigError(
                    ["metadata.quorum.engine=pysyncobj needs the library; run: pip install 'moldau[pysyncobj]'"]
                )
            from moldau_quorum.log.pysyncobj.shell import PySyncObjLog

            return PySyncObjLog(environment, config, machine)
