"""Local clusters: controllers and brokers as separate processes of this machine.

``start_cluster`` makes a directory with one configuration file, one data directory and one log per node, starts the
nodes and returns when every broker is unfenced. ``cluster.json`` in that directory holds the whole state of the
launcher: any later process can open the cluster again with ``open_cluster`` and stop, kill, pause, resume or restart
nodes.
"""

from moldau_jepsen.launcher.cluster import LocalCluster, NodeStatus, QuorumStatus, open_cluster, start_cluster
from moldau_jepsen.launcher.spec import ClusterSpec, LauncherError, LauncherUsageError, Node

__all__ = [
    "ClusterSpec",
    "LauncherError",
    "LauncherUsageError",
    "LocalCluster",
    "Node",
    "NodeStatus",
    "QuorumStatus",
    "open_cluster",
    "start_cluster",
]
