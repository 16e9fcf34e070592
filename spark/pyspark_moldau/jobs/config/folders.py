"""The folder of a job's checkpoints: that it can be used, and that it is no other job's.

Spark goes on from any checkpoint whose source fits. An aggregation that is given the checkpoint of a load would take
all records for read, and write a table without them. So the folder notes its job, by kind and sink.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

from pyspark_moldau.jobs.files import write_atomically
from pyspark_moldau.sink.reach import has_finished_batch

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark_moldau.jobs.config.settings import Section

JOB: Final = "_moldau_job.json"
START: Final = "_moldau_start.json"
"""The offsets at which the queries of a job start, if they start at the ends of their topics."""


def check_folder(root: Section, checkpoint: Path, kind: str, sink: str | Path) -> bool:
    """Makes the folder and returns whether a query of the job has finished a batch.

    ``kind`` is the section of the job, ``sink`` its topic or the folder of its table. The folder of a job that has not
    finished a batch becomes this job's.

    Raises:
        JobConfigError: The folder cannot be made or written, or is another job's.
    """
    place = "[run] checkpoint"
    # A table is named by its way from the checkpoint, so that both may be moved together.
    job = {"kind": kind, "sink": sink if isinstance(sink, str) else os.path.relpath(sink, checkpoint)}
    note = checkpoint / JOB
    try:
        checkpoint.mkdir(parents=True, exist_ok=True)
        has_run = any(map(has_finished_batch, checkpoint.glob("*")))
        found = _noted(note)
        if found != job and (found is None or not has_run):
            write_atomically(note, json.dumps(job))
            found = job
        if not any(checkpoint.glob("*/offsets/*")):  # no query has planned a batch from there
            (checkpoint / START).unlink(missing_ok=True)
    except OSError as error:
        raise root.error(place, f"{checkpoint} cannot be used: {error.strerror or error}; name a folder") from error
    if found != job:
        assert found is not None, "a folder without a note has become this job's"
        raise root.error(
            place,
            f"{checkpoint} is that of another job ({found.get('kind')} to {found.get('sink')}), and says which records "
            f"that one has read; name a folder for this job (or delete {note} if it is the same job with another sink)",
        )
    return has_run


def _noted(note: Path) -> dict[str, str] | None:
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None
