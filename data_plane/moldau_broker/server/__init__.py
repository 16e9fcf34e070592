"""The broker: listeners, request handlers, replicas and the tasks that keep them in step with the cluster.

====================  ===============================================================================================
package               contains
====================  ===============================================================================================
``lifecycle``         start and stop (``broker``, ``startup``, ``phases``, ``shutdown``), dynamic configuration,
                      housekeeping of the logs (``log_tasks``), the end of a broker whose directories have failed
``cluster_metadata``  the newest committed image as handlers read it (``cache``), and the task that applies it
``replicas``          the replicas of this broker: appends and metadata changes (``replica_manager``), waiting requests
                      (``replica_waits``), fetching from leaders (``replica_fetcher``), ISR changes (``isr``), log
                      directories (``replica_directories``), creation and deletion of logs (``log_changes``)
``data_path``         client connections (``connection``), Produce and Fetch
``handlers``          the table of APIs (``apis``) and the handlers of all other requests
``coordination``      group and transaction coordinators on their partitions, and transaction markers between brokers
====================  ===============================================================================================
"""

from moldau_broker.server.lifecycle.broker import Broker, run_broker
from moldau_broker.server.lifecycle.directory_watch import LogDirectoriesFailedError
from moldau_broker.server.lifecycle.startup import BrokerStartError, BrokerStartTimeoutError

__all__ = ["Broker", "BrokerStartError", "BrokerStartTimeoutError", "LogDirectoriesFailedError", "run_broker"]
