"""Replication: the pure cores of leaders and followers.

These modules compute and never wait. Time comes in as ``now_ms``, events come in as method calls, and effects go out as
return values. Sockets, files and tasks belong to the shells in ``moldau_broker.server``.

========================  ==========================================================================================
module                    decides
========================  ==========================================================================================
``replica``               one replica: leader or follower, in-sync replicas, high watermark, epoch fences
``alter_partition``       which in-sync replica changes travel to the controller, one request in flight
``follower``              what a follower fetches from a leader, where it truncates, when it backs off
``follower_progress``     how far one follower has copied the log, as its leader knows it
``fetch_session``         incremental fetches (KIP-227) and the broker's cache of fetch sessions
``purgatory``             when an operation that waits for a condition or its deadline completes, exactly once
``timer_wheel``           deadlines in O(1)
``throttle``              how fast replicas outside the ISR are copied
``directory_assignment``  which log directory holds a replica (KIP-858)
========================  ==========================================================================================
"""
