"""Replication: pure cores that decide, for the broker's shells that act.

What stands here computes and never waits. Time comes in as ``now_ms``, what happened comes in as method calls, and what
must happen next goes out as return values; sockets, files and tasks live in ``moldau_broker.server``.

========================  ==========================================================================================
module                    decides
========================  ==========================================================================================
``replica``               one replica: leader or follower, in-sync replicas, high watermark, epoch fences
``alter_partition``       which in-sync replica changes travel to the controller, one request in flight
``follower``              what a follower asks of a leader, where it truncates, when it backs off
``fetch_session``         incremental fetches (KIP-227), both the broker's cache and the follower's memory
``purgatory``             operations that wait for a condition or for their deadline, whichever is first, once
``timer_wheel``           deadlines in O(1)
``throttle``              how fast replicas outside the ISR are copied
========================  ==========================================================================================
"""
