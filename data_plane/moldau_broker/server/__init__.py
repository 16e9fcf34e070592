"""The broker: listeners, request handlers, replicas and the tasks that keep them in step with the cluster.

=======================  ============================================================================================
module                   does
=======================  ============================================================================================
``broker``               starts and stops the parts in order (``run_broker``)
``startup``              what is read off the configuration and the log directories at the start
``coordinators``         groups and transactions, put together on the partitions that are led here
``connection``           one client connection: from frames to handlers
``apis``                 which APIs are served, in which versions, by whom
``produce``, ``fetch``   the data path
``replica_manager``      all replicas of this broker, and how they follow committed metadata
``partition``            one replica: log and state machine
``delayed``              answers that wait, and their clock
``replica_fetcher``      follows leaders
``replica_directories``  which log directory holds a replica: placing, telling the controller, failures
``directory_watch``      ends the broker when it cannot go on with the directories that work
``isr``                  carries changes of in-sync replicas to the controller
``metadata_cache``       the newest committed image, as handlers ask it
``metadata_applier``     takes over what is committed, step by step where it is much
``log_tasks``            drives retention, flushing, recovery and cleaning of the logs
``transactions``         markers between brokers, and the coordinator's word on partitions
``handlers``             everything that is not Produce or Fetch
=======================  ============================================================================================
"""

from moldau_broker.server.broker import Broker, run_broker
from moldau_broker.server.directory_watch import LogDirectoriesFailedError
from moldau_broker.server.startup import BrokerStartError

__all__ = ["Broker", "BrokerStartError", "LogDirectoriesFailedError", "run_broker"]
