"""Twin of the extension ``_wire``: it leaves everything to the general readers and writers."""

from __future__ import annotations


def left_to_the_general_one(*_: object) -> None:
    """Takes no short cut."""


read_produce = read_one_produce = read_fetch = read_fetch_answer = write_produce = write_fetch = left_to_the_general_one
