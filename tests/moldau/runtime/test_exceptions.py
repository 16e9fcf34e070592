"""Goal: all exceptions inside of nested groups are found, in order. Method: groups by hand."""

from moldau.runtime.tasks.exceptions import leaves


def test_leaves_of_nested_groups_come_in_order() -> None:
    one, two, three = ValueError("1"), OSError("2"), KeyError("3")
    group = ExceptionGroup("outer", [one, ExceptionGroup("inner", [two, three])])
    assert list(leaves(group)) == [one, two, three]
    assert list(leaves(one)) == [one]
