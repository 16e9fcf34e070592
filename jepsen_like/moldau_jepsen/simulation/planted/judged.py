"""For each rule and each checker a planted bug that it convicts with all the others switched off.

The rules overlap: what breaks one mostly breaks several, and the first to notice ends the run. So that a rule has been
the first for no bug says nothing about it; that it never convicts alone would say that it cannot fail.
"""

from __future__ import annotations

ALONE: dict[str, str] = {}
