"""What a campaign of ``moldau sim run`` leaves: page, document, and a folder for each failed seed.

That one of them cannot be written, as on a full disk, is told once and ends no campaign: what was found is told anyway.
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
    """Writes the folder of a failed run. Returns why that cannot be, in a few words; nothing if it is written."""
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
        """Makes the directory. Raises ``UsageError`` where that cannot be: nothing has been run yet."""
        self._directory = directory
        self.page, self.document = directory / PAGE, directory / DOCUMENT
        self.unwritten: dict[str, str] = {}
        """What is missing or not up to date, and why."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(_cannot_write(directory, error)) from error

    @property
    def notes(self) -> list[str]:
        """What is missing, for the page."""
        return [f"{what}: {why}." for what, why in self.unwritten.items() if what == FOLDERS]

    def keep(self, result: Result) -> bool:
        """Writes the folder of a failed seed; returns whether that succeeded."""
        why = keep(result, self._directory)
        if why:
            self._tell(FOLDERS, why)
        return not why

    def write_report(self, report: CampaignReport) -> None:
        """Writes page and document, if possible. At every moment each is a whole one: this, or the one before."""
        from moldau_jepsen.reports.simulation import campaign_page

        for path, text in (
            (self.document, json.dumps(report.to_json(), indent=1) + "\n"),
            (self.page, campaign_page(report)),
        ):
            draft = path.with_name(f"{path.name}.draft")
            try:
                draft.write_text(text, encoding="utf-8")
                os.replace(draft, path)
            except OSError as error:
                self._tell(path.name, _cannot_write(self._directory, error))
                with contextlib.suppress(OSError):
                    draft.unlink(missing_ok=True)  # half of a page takes room and serves nobody
            else:
                self.unwritten.pop(path.name, None)

    def _tell(self, what: str, why: str) -> None:
        if self.unwritten.get(what) != why:
            self.unwritten[what] = why
            output.note(f"{what}: {why}")
