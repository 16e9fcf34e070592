"""The directory of a controller: its lock, and the node that owns it.

Below ``metadata.log.dir`` a controller owns ``__cluster_metadata``: a lock file, ``meta.properties`` in Kafka's format
(node id, directory id, and the cluster id as soon as it is known), and the engine's directory. Starting a node on the
directory of another node, another cluster or another engine is refused with a text that says what was found.

``metadata.log.begun`` is written as soon as the engine's files are there, before the node has promised anything. When
they are missing later, the promises are lost, and the node does not start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

from moldau.runtime.ports.environment import OpenMode
from moldau_quorum.log.port import replacement_advice

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Disk, Lock

METADATA_DIRECTORY: Final = "__cluster_metadata"
META_PROPERTIES: Final = "meta.properties"
META_BYTES_MAX: Final = 64 * 1024
SEGMENT_PREFIX: Final = "log-"
"""Names of the log's files in the directory of either engine."""


class NodeDirectoryError(Exception):
    """The directory cannot be used by this node; the text names the file and what would be right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """Content of ``meta.properties``."""

    node_id: int
    directory_id: UUID
    engine: str
    cluster_id: str = ""
    log_begun: bool = False
    """Whether the engine's log had come into being: it must be there."""


class NodeDirectory:
    """A locked directory whose identity was checked. ``close`` gives the lock back."""

    def __init__(self, disk: Disk, path: str, lock: Lock, identity: NodeIdentity) -> None:
        """Made by ``open_node_directory``."""
        self._disk = disk
        self._path = path
        self._lock = lock
        self.identity = identity

    @property
    def is_new(self) -> bool:
        """Whether the engine has never written anything here."""
        return not self._disk.exists(self.engine_path) or not self._disk.list_directory(self.engine_path)

    @property
    def engine_path(self) -> str:
        """The engine's own directory."""
        return f"{self._path}/{self.identity.engine}"

    def learn_cluster_id(self, cluster_id: str) -> None:
        """Writes the cluster id down; durable on return. Blocks: some milliseconds, once in the life of a directory.

        Raises:
            NodeDirectoryError: the directory belongs to another cluster.
        """
        if self.identity.cluster_id == cluster_id:
            return
        if self.identity.cluster_id:
            raise NodeDirectoryError(
                f"{self._path}/{META_PROPERTIES}: this directory belongs to cluster {self.identity.cluster_id}, "
                f"but the metadata log says {cluster_id}"
            )
        self.identity = replace(self.identity, cluster_id=cluster_id)
        _write(self._disk, self._path, self.identity)

    def log_opened(self) -> None:
        """Writes down that there is a log; durable on return. Blocks."""
        if not self.identity.log_begun:
            self.identity = replace(self.identity, log_begun=True)
            _write(self._disk, self._path, self.identity)

    def close(self) -> None:
        """Gives the lock back; idempotent."""
        self._lock.release()


def open_node_directory(
    disk: Disk, metadata_log_dir: str, *, node_id: int, engine: str, cluster_id: str, new_directory_id: UUID
) -> NodeDirectory:
    """Locks the directory of a controller, creates it where missing, and checks whose it is.

    ``cluster_id`` is the configured one, empty when none is.

    Raises:
        NodeDirectoryError: it is in use, belongs to another node, cluster or engine, or its identity is damaged.
        OSError: the disk failed.
    """
    path = f"{metadata_log_dir}/{METADATA_DIRECTORY}"
    _make_durable_directories(disk, f"{path}/{engine}")
    try:
        lock = disk.lock(f"{path}/.lock")
    except BlockingIOError as error:
        raise NodeDirectoryError(f"{path}: another process uses this directory") from error
    try:
        identity = read_identity(disk, path)
        if identity is None:
            _check_no_log(disk, f"{path}/{engine}", node_id)
            identity = NodeIdentity(
                node_id=node_id, directory_id=new_directory_id, engine=engine, cluster_id=cluster_id
            )
            _write(disk, path, identity)
        _check(identity, f"{path}/{META_PROPERTIES}", node_id=node_id, engine=engine, cluster_id=cluster_id)
        _check_log(disk, f"{path}/{engine}", identity)
        if cluster_id and not identity.cluster_id:  # the file of an earlier start had none
            identity = replace(identity, cluster_id=cluster_id)
            _write(disk, path, identity)
    except BaseException:
        lock.release()
        raise
    return NodeDirectory(disk, path, lock, identity)


def _make_durable_directories(disk: Disk, path: str) -> None:
    """Creates a directory with its parents; their names are durable on return.

    A name that a power loss takes away takes the whole log with it, whatever was synced inside.
    """
    missing: list[str] = []
    ancestor = path
    while ancestor and not disk.exists(ancestor):
        missing.append(ancestor)
        ancestor = ancestor.rpartition("/")[0]
    disk.make_directories(path)
    # The last three levels may be there from a start that was killed before it came to this.
    metadata_directory = path.rpartition("/")[0]
    own = [path, metadata_directory, metadata_directory.rpartition("/")[0]]
    for directory in dict.fromkeys([*own, *missing]):
        disk.sync_directory(directory.rpartition("/")[0] or "/")


def _check(identity: NodeIdentity, name: str, *, node_id: int, engine: str, cluster_id: str) -> None:
    if identity.node_id != node_id:
        raise NodeDirectoryError(f"{name}: this directory belongs to node {identity.node_id}, but node.id is {node_id}")
    if cluster_id and identity.cluster_id and identity.cluster_id != cluster_id:
        raise NodeDirectoryError(
            f"{name}: this directory belongs to cluster {identity.cluster_id}, but cluster.id is {cluster_id}"
        )
    if identity.engine != engine:
        raise NodeDirectoryError(
            f"{name}: this directory was written by engine {identity.engine}, but metadata.quorum.engine is {engine}"
        )


def _check_log(disk: Disk, engine_path: str, identity: NodeIdentity) -> None:
    present = any(name.startswith(SEGMENT_PREFIX) for name in disk.list_directory(engine_path))
    if identity.log_begun and not present:
        raise NodeDirectoryError(
            f"{engine_path}: the metadata log of node {identity.node_id} is gone, and with it what this voter has "
            f"promised to the others; {replacement_advice(identity.node_id)}"
        )


def _check_no_log(disk: Disk, engine_path: str, node_id: int) -> None:
    """Refuses a log whose ``meta.properties`` are missing: under a new directory id it would be that of no voter."""
    if any(name.startswith(SEGMENT_PREFIX) for name in disk.list_directory(engine_path)):
        raise NodeDirectoryError(
            f"{engine_path} holds a metadata log, but {META_PROPERTIES} beside it is missing; "
            f"{replacement_advice(node_id)}"
        )


def read_identity(disk: Disk, path: str) -> NodeIdentity | None:
    """Returns what ``meta.properties`` of a controller's directory says; None if there is none.

    Raises:
        NodeDirectoryError: it is damaged.
    """
    name = f"{path}/{META_PROPERTIES}"
    if not disk.exists(name):
        return None
    file = disk.open(name, OpenMode.READ)
    try:
        content = file.read(0, META_BYTES_MAX)
    finally:
        file.close()
    try:
        text = content.decode("utf-8")
        values = dict(
            line.split("=", 1) for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
        )
        if values.get("version") != "1":
            raise ValueError(f"version {values.get('version')!r} is not 1")
        return NodeIdentity(
            node_id=int(values["node.id"]),
            directory_id=UUID(values["directory.id"]),
            engine=values["metadata.quorum.engine"],
            cluster_id=values.get("cluster.id", ""),
            log_begun=values.get("metadata.log.begun", "false") == "true",
        )
    except KeyError as error:
        raise NodeDirectoryError(f"{name}: damaged, {error.args[0]} is missing") from error
    except ValueError as error:
        raise NodeDirectoryError(f"{name}: damaged, {error}") from error


def _write(disk: Disk, path: str, identity: NodeIdentity) -> None:
    """Replaces the file atomically; durable on return."""
    lines = [
        "version=1",
        f"node.id={identity.node_id}",
        f"directory.id={identity.directory_id}",
        f"metadata.quorum.engine={identity.engine}",
    ]
    if identity.cluster_id:
        lines.append(f"cluster.id={identity.cluster_id}")
    if identity.log_begun:
        lines.append("metadata.log.begun=true")
    temporary = f"{path}/{META_PROPERTIES}.tmp"
    file = disk.open(temporary, OpenMode.WRITE)
    try:
        file.truncate(0)
        file.append(["\n".join([*lines, ""]).encode("utf-8")])
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, f"{path}/{META_PROPERTIES}")
    disk.sync_directory(path)
