"""The errors of pipeline jobs. Each text names the setting or file, its value, and the remedy."""

from __future__ import annotations


class JobError(Exception):
    """A job cannot go on: a table, a checkpoint or a query is not as it must be."""


class JobBusyError(JobError):
    """Another run of the job is at work."""


class JobConfigError(JobError):
    """The job's configuration is wrong."""


class PoisonError(ValueError):
    """A record's value is not what its schema says."""
