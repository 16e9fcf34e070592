"""The controller's decisions: pure functions from a request and an image to records and a response.

Topics and partitions are decided in the modules here, brokers and features in ``cluster``, and configurations, quotas,
credentials and ACLs in ``entities``. Each entry point takes the request, the image to decide against, and a ``Context``
(settings, time, drawn values), changes nothing, and returns a ``Result``. The shell
(``moldau_quorum.node.active_controller``) writes the records as one command, replays them, and answers when they are
committed. ``dispatch`` maps each request to its function.
"""
