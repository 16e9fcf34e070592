"""Goal: an index finds the same entries as a plain search, whatever was cut off and appended since.

Method: an index of several pages on a virtual disk, beside a list of its entries; look-ups before each change fill the
memory of page keys, which the change must not leave outdated.
"""

import pytest

from moldau_broker.log.files.index import OffsetIndex, OffsetPosition
from moldau_broker.log.files.open_files import OpenFiles
from support.log.model import VirtualMachine

PAGE_ENTRIES = 512
COUNT = 3 * PAGE_ENTRIES


def grow(index: OffsetIndex, model: list[OffsetPosition], step: int) -> None:
    """Appends entries ``step`` offsets apart until there are ``COUNT``, and writes them to the file."""
    offset, position = model[-1] if model else OffsetPosition(0, 0)
    while len(model) < COUNT:
        offset, position = offset + step, position + 100
        index.append(offset, position)
        model.append(OffsetPosition(offset, position))
    index.spill()


@pytest.mark.parametrize("kept", [0, 1, PAGE_ENTRIES - 1, PAGE_ENTRIES, PAGE_ENTRIES + 5, 2 * PAGE_ENTRIES])
@pytest.mark.parametrize("step", [2, 9])
def test_entries_behind_a_cut_are_found(kept: int, step: int) -> None:
    """The pages behind the cut begin with other entries when the index has grown again."""
    disk = VirtualMachine(1).disk
    disk.make_directories("/data")
    index = OffsetIndex(disk, "/data/0.index", 0, 1 << 20, OpenFiles(disk))
    model: list[OffsetPosition] = []
    grow(index, model, 4)
    for page in range(3):
        assert index.lookup(model[page * PAGE_ENTRIES].offset) == model[page * PAGE_ENTRIES]
    index.truncate_to_offset(model[kept].offset)
    del model[kept:]
    assert index.count == kept
    grow(index, model, step)
    for each in model[:: PAGE_ENTRIES // 4]:
        assert index.lookup(each.offset) == each
        assert index.lookup(each.offset + 1) == each
