"""The files that a campaign of ``moldau sim run`` writes: page, document, and a folder for each failed seed.

If a file cannot be written, for example because the disk is full, the campaign reports this once and continues, and
still reports its findings.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from moldau_cli import output
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from moldau_jepsen.reports.simulation import CampaignReport
    from moldau_jepsen.simulation import Result

PAGE, DOCUMENT = "campaign.html", "campaign.json"
FOLDERS = "folders of failed seeds"


def keep(result: Result, directory: Path) -> str:
    """Writes the folder of a failed run; returns why that failed, or an empty string."""
    from moldau_jepsen.simulation import write_failure

    try:
        write_failure(result, directory)
    except OSError as error:
        return _cannot_write(directory, error)
    return ""


def _cannot_write(directory: Path, error: OSError) -> str:
    return f"cannot write below {directory}: {error.strerror or error}"


class CampaignFiles:
    """The files of one campaign."""

    def __init__(self, directory: Path) -> None:
        """Creates the directory, before any seed runs.

        Raises:
            UsageError: the directory cannot be created.
        """
        self._directory = directory
        self.page, self.document = directory / PAGE, directory / DOCUMENT
        self.unwritten: dict[str, str] = {}
        """Files that are missing or outdated, with the reasons."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(_cannot_write(directory, error)) from error

    @property
    def notes(self) -> list[str]:
        """Notes for the page about missing folders."""
        return [f"{what}: {why}." for what, why in self.unwritten.items() if what == FOLDERS]

    def keep(self, result: Result) -> bool:
        """Writes the folder of a failed seed; returns whether that succeeded."""
        why = keep(result, self._directory)
        if why:
            self._report(FOLDERS, why)
        return not why

    def write_report(self, report: CampaignReport) -> None:
        """Writes page and document if possible. Each file is replaced atomically, so it is always complete."""
        from moldau_jepsen.origin import origin
        from moldau_jepsen.reports.simulation import campaign_page

        made = origin()
        for path, text in (
            (self.document, json.dumps({**report.to_json(), "origin": made.to_json()}, indent=1) + "\n"),
            (self.page, campaign_page(report, made)),
        ):
            draft = path.with_name(f"{path.name}.draft")
            try:
                draft.write_text(text, encoding="utf-8")
                os.replace(draft, path)
            except OSError as error:
                self._report(path.name, _cannot_write(self._directory, error))
                with contextlib.suppress(OSError):
                    draft.unlink(missing_ok=True)  # an incomplete draft is useless
            else:
                self.unwritten.pop(path.name, None)

    def _report(self, what: str, why: str) -> None:
        if self.unwritten.get(what) != why:
            self.unwritten[what] = why
            output.note(f"{what}: {why}")
