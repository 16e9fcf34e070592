"""The storage engine: partitions as segmented, append-only logs in Kafka's own file formats.

Theory of operation: a partition is a directory ``<topic>-<n>`` of segments. A segment is a ``.log`` file of record
batches named by the first offset it holds, with a sparse offset index, a time index, an index of aborted transactions
and a snapshot of the producer state at its start. All but the last segment are immutable. Everything is synchronous
code over the ``Disk`` port: no clock (callers pass ``now_ms``, wall-clock milliseconds), no trio, no threads. Steps
that may block for long (fsync, recovery of one log, cleaning of one log, deletion) are returned as ``Work``. A shell
runs it in a thread and then completes it in the event loop.

Use::

    manager = LogManager(disk, ["/data/a", "/data/b"], node_id=1, cluster_id=..., default_config=LogConfig())
    manager.start(now_ms)                      # locks directories, reads checkpoints; a bad one goes offline alone
    manager.know_configs(default, by_topic)    # settings as of the last known metadata
    for work in manager.recovery_work(): ...   # run in threads, complete in the loop; fills manager.logs
    log = manager.claim(TopicPartition("t", 0), topic_id)    # the topic's own log among those found
    log = manager.get_or_create(TopicPartition("t", 0), topic_id=..., now_ms=now)

    manager.update_topic_config("t", config)   # always, after a claim
    for _ in manager.set_aside_unclaimed(...): ...
    manager.begin_discarding(now_ms)           # all logs are claimed: retention and the cleaner may begin

    info = log.stage_as_leader(records, leader_epoch=3, now_ms=now)  # validates and assigns offsets in memory
    log.flush_staged()                         # one gathered write; log_end_offset moves here
    if not log.is_settled:                     # flush.messages: no acknowledgement above settled_end_offset yet
        work = manager.flush_work(log)         # offload; when it is complete, settled_end_offset has moved
    info = log.append_as_leader(...)           # stages and flushes
    info = log.append_as_follower(records, now_ms=now)
    result = log.read(offset, max_bytes=..., upper_bound_offset=log.high_watermark, min_one_batch=True)
    log.update_high_watermark(offset)

    for work in manager.tick(now_ms, monotonic_ms): ...  # retention, rolls, flushes, checkpoints, deletions, cleaner

Errors are ``LogError`` (a ``KafkaError`` with the code that goes on the wire). ``LogStorageError`` means that the
directory failed: the shell calls ``manager.fail_directory`` and the other directories go on.

The folders: ``partition`` (one log: ``partition_log`` and its parts, ``validator``, ``producer_state``,
``epoch_cache``, and ``loader`` for recovery), ``files`` (``segment``, its indexes, ``checkpoint``, ``dump``),
``directories`` (``manager`` and its parts) and ``cleaner`` (compaction).
"""
