"""The folder of a job's checkpoints: that it can be used, and that it is no other job's.

Spark goes on from any checkpoint whose source fits. An aggregation that is given the checkpoint of a load would take
all records for read, and write a table without them. So the folder notes its job, by kind and sink. For the same
reason the table of a job that has written to it must be there.

Two runs at the same time would write the same batches, and one of them could compact files that the other replaces. So
a run holds a lock on the folder, which ends with its process.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_moldau.jobs.errors import JobBusyError
from pyspark_moldau.jobs.files import OWNER, write_atomically
from pyspark_moldau.sink.reach import has_finished_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark_moldau.jobs.config.settings import Section
    from pyspark_moldau.jobs.errors import JobConfigError

logger = logging.getLogger(__name__)

JOB: Final = "_moldau_job.json"
LOCK: Final = "_moldau_run.lock"
"""The file that a run of the job locks; it stays there, and says nothing by itself."""
PLACE: Final = "[run] checkpoint"
MAIN: Final = "main"
"""The name of the query that writes the table or topic of a job, and of its folder."""
START: Final = "_moldau_start.json"
"""The offsets at which the queries of a job start, if they start at the ends of their topics."""


@contextmanager
def held(root: Section, checkpoint: Path) -> Iterator[None]:
    """Makes the folder, of a job or of a version of a view, and keeps other runs away, in this process and in others.

    Raises:
        JobConfigError: The folder cannot be made or written.
        JobBusyError: Another run of the job is at work.
    """
    try:
        checkpoint.mkdir(parents=True, exist_ok=True)
        file = (checkpoint / LOCK).open("ab")
    except OSError as error:
        raise _unusable(root, checkpoint, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JobBusyError(
                f"another run of this job is at work in {checkpoint}; let it end first, or give another job a folder "
                "of its own"
            ) from error
        except OSError as error:  # some file systems have no locks
            logger.warning("checkpoint-not-locked folder=%s error=%s", checkpoint, error)
        yield


def check_folder(root: Section, checkpoint: Path, kind: str, sink: str | Path) -> bool:
    """Makes the folder and returns whether a query of the job has finished a batch.

    ``kind`` is the section of the job, ``sink`` its topic or the folder of its table. The folder of a job that has not
    finished a batch becomes this job's.

    Raises:
        JobConfigError: The folder cannot be made or written, or is another job's, or the job's table is gone.
    """
    # A table is named by its way from the checkpoint, so that both may be moved together.
    job = {"kind": kind, "sink": sink if isinstance(sink, str) else os.path.relpath(sink, checkpoint)}
    note = checkpoint / JOB
    try:
        checkpoint.mkdir(parents=True, exist_ok=True)
        has_run = any(map(has_finished_batch, checkpoint.glob("*")))
        found = _noted(note)
        has_lost_table = (
            found == job
            and isinstance(sink, Path)
            and has_finished_batch(checkpoint / MAIN)
            and not (sink / OWNER).exists()
        )
        if found != job and (found is None or not has_run):
            write_atomically(note, json.dumps(job))
            found = job
        if not any(checkpoint.glob("*/offsets/*")):  # no query has planned a batch from there
            (checkpoint / START).unlink(missing_ok=True)
    except OSError as error:
        raise _unusable(root, checkpoint, error) from error
    if found != job:
        assert found is not None, "a folder without a note has become this job's"
        raise root.error(
            PLACE,
            f"{checkpoint} is that of another job ({found.get('kind')} to {found.get('sink')}), and says which records "
            f"that one has read; name a folder for this job (or delete {note} if it is the same job with another sink, "
            "which gets the records from now on)",
        )
    if has_lost_table:
        raise root.error(
            "[sink] table",
            f"{sink} is not there any more, although this job has written to it: a new table would lack those rows. "
            f"Bring it back (is its disk mounted?), remove {checkpoint / MAIN} to read all records again, or delete "
            f"{note} to go on without the rows",
        )
    return has_run


def _unusable(root: Section, checkpoint: Path, error: OSError) -> JobConfigError:
    return root.error(PLACE, f"{checkpoint} cannot be used: {error.strerror or error}; name a folder")


def _noted(note: Path) -> dict[str, str] | None:
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None
