"""Processes that run seeds side by side, and end with the campaign that started them, however that ends.

An interrupt from a terminal reaches all processes at once. Workers ignore it: the campaign alone decides what it means.
When it leaves the block early, by an interrupt or an exception, its workers are ended where they are, so that nobody
waits for seeds that nobody asks for any more; when the campaign's process dies, they notice and end as well.

The module is light on purpose: a worker ignores interrupts as soon as it has imported this, before it imports what it
runs.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def workers(
    processes: int | None, *, tasks: int | None = None, tasks_per_worker: int | None = None
) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """A pool of ``processes`` (default: one per core), of no more than there are ``tasks``.

    A worker is replaced after ``tasks_per_worker``. Where a worker dies, the futures of the pool raise
    ``concurrent.futures.BrokenExecutor``.
    """
    count = processes if processes is not None else (os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    campaign, hold = context.Pipe(duplex=False)  # nothing is ever sent: it is closed
    pool = concurrent.futures.ProcessPoolExecutor(
        max(1, min(count, tasks if tasks is not None else count)),
        mp_context=context,
        initializer=_settle_in,
        initargs=(campaign,),
        max_tasks_per_child=tasks_per_worker,
    )
    try:
        yield pool
    except BaseException:
        hold.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        hold.close()
        campaign.close()


def _settle_in(campaign: multiprocessing.connection.Connection) -> None:
    """Runs first in a worker. What it has imported stays: its collector need not look at that before every seed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(campaign,), daemon=True).start()
    gc.collect()
    gc.freeze()


def _end_with(campaign: multiprocessing.connection.Connection) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers are started by a campaign"
    multiprocessing.connection.wait([campaign, parent.sentinel])
    os._exit(1)
