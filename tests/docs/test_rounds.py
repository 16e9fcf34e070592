"""Goal: the page of the rounds of planted bugs adds up, and leads to each round's survivors.

Method: its table is read back, and compared with the headings of the pages that it links and with its picture.
"""

import re

from support.rounds_of_bugs import PAGE, PICTURE, draw, rounds

ROUNDS = rounds(PAGE.read_text(encoding="utf-8"))


def test_each_planted_bug_of_a_round_has_one_verdict():
    assert [
        row.number
        for row in ROUNDS
        if row.planted != row.nearest + row.wider + row.survived + row.without_effect or not row.observable
    ] == []


def test_each_round_is_in_the_table_once():
    assert [row.number for row in ROUNDS] == list(range(1, len(ROUNDS) + 1))
    headings = {
        (page.name, int(number))
        for page in PAGE.parent.glob("rounds-*.md")
        for number in re.findall(r"^## Round (\d+): ", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    linked = {(row.target.partition("#")[0], row.number) for row in ROUNDS}
    assert headings <= linked
    assert {name for name, _ in linked - headings} <= {"planted-by-readers.md"}


def test_the_picture_shows_each_round(tmp_path):
    """Versions of the plotting library write other files, so what both show is compared: the counts above the bars."""
    draw(ROUNDS, tmp_path / "now.svg")
    shown, now = (
        re.findall(r"<!-- (\d+) -->", path.read_text(encoding="utf-8")) for path in (PICTURE, tmp_path / "now.svg")
    )
    assert len(now) >= 2 * len(ROUNDS)
    assert shown == now, "run: PYTHONPATH=tests python -m support.rounds_of_bugs"
