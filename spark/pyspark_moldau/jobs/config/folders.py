"""The folder of a job's checkpoints: that it can be used, and that it is no other job's.

Spark goes on from any checkpoint whose source fits. An aggregation that is given the checkpoint of a load would take
all records for read, and write a table without them. So the folder notes its job, by kind and sink. For the same
reason the table of a job that has written to it must be there.

A job with state (windows, sessions, joins) notes what its state is made of, too. Spark compares the types in a state
and not their meaning: with two columns in another order, open windows would give the values of one to the other.

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
from typing import TYPE_CHECKING, Any, Final

from pyspark_moldau.jobs.errors import JobBusyError
from pyspark_moldau.jobs.files import OWNER, write_atomically
from pyspark_moldau.sink.reach import has_finished_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark_moldau.jobs.config.settings import Section
    from pyspark_moldau.jobs.errors import JobConfigError

logger = logging.getLogger(__name__)

JOB: Final = "_moldau_job.json"
LOCK: Final = "_moldau_run.lock"
"""The file that a run of the job locks; it stays there, and says nothing by itself."""
STATE: Final = "state"
"""The entry of that note with the settings that the state of the job is made of."""
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


def check_folder(
    root: Section, checkpoint: Path, kind: str, sink: str | Path, state: Mapping[str, str] | None = None
) -> bool:
    """Makes the folder and returns whether a query of the job has finished a batch.

    ``kind`` is the section of the job, ``sink`` its topic or the folder of its table. The folder of a job that has not
    finished a batch becomes this job's. ``state`` holds the settings of the section that must stay while Spark keeps a
    state of the job.

    Raises:
        JobConfigError: The folder cannot be made or written, or is another job's, or the job's table is gone, or its
            state is made of something else.
    """
    # A table is named by its way from the checkpoint, so that both may be moved together.
    job = {"kind": kind, "sink": sink if isinstance(sink, str) else os.path.relpath(sink, checkpoint)}
    note = checkpoint / JOB
    try:
        checkpoint.mkdir(parents=True, exist_ok=True)
        has_run = any(map(has_finished_batch, checkpoint.glob("*")))
        has_state = any(checkpoint.glob(f"{MAIN}/offsets/*"))
        noted = _noted(note)
        found = None if noted is None else {name: noted.get(name) for name in job}
        former = None if noted is None else noted.get(STATE)
        is_job = found == job or found is None or not has_run
        has_lost_table = (
            found == job
            and isinstance(sink, Path)
            and has_finished_batch(checkpoint / MAIN)
            and not (sink / OWNER).exists()
        )
        has_other_state = found == job and has_state and former is not None and former != state
        written = job if state is None else job | {STATE: dict(state)}
        if is_job and not has_other_state and noted != written:
            write_atomically(note, json.dumps(written))
        if not any(checkpoint.glob("*/offsets/*")):  # no query has planned a batch from there
            (checkpoint / START).unlink(missing_ok=True)
    except OSError as error:
        raise _unusable(root, checkpoint, error) from error
    if not is_job:
        raise _other_job(root, checkpoint, found or {})
    if has_lost_table:
        raise root.error(
            "[sink] table",
            f"{sink} is not there any more, although this job has written to it: a new table would lack those rows. "
            f"Bring it back (is its disk mounted?), remove {checkpoint / MAIN} to read all records again, or delete "
            f"{note} to go on without the rows",
        )
    if has_other_state:
        raise _other_state(root, checkpoint, kind, former or {}, state or {})
    return has_run


def _other_job(root: Section, checkpoint: Path, found: Mapping[str, Any]) -> JobConfigError:
    return root.error(
        PLACE,
        f"{checkpoint} is that of another job ({found.get('kind')} to {found.get('sink')}), and says which records "
        f"that one has read; name a folder for this job (or delete {checkpoint / JOB} if it is the same job with "
        "another sink, which gets the records from now on)",
    )


def _other_state(
    root: Section, checkpoint: Path, kind: str, former: Mapping[str, str], state: Mapping[str, str]
) -> JobConfigError:
    """Returns the error of a job that would take the values in its state for others."""
    name = next(name for name in (*state, *former) if state.get(name) != former.get(name))
    return root.error(
        f"[{kind}] {name}",
        f"is {state.get(name)!r}, and the state in {checkpoint / MAIN} was made with {former.get(name)!r}, in this "
        "order: values of one would be taken for those of the other. Set it back, or name another [run] checkpoint and "
        "another [sink] to make the result from the first record",
    )


def _unusable(root: Section, checkpoint: Path, error: OSError) -> JobConfigError:
    return root.error(PLACE, f"{checkpoint} cannot be used: {error.strerror or error}; name a folder")


def _noted(note: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None
