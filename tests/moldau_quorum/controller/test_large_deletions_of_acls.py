"""Requests about many access control entries take a bounded time.

While the controller compares without a pause, its quorum elects another leader, which then gets the same request. The
tests count comparisons; they do not measure time.
"""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from moldau.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from moldau.protocol.messages.describe_acls import DescribeAclsRequest
from moldau_quorum.controller.context import DecisionView
from moldau_quorum.controller.entities import acls
from support.controller.model import ModelController

COUNT = 300


@pytest.fixture
def controller() -> ModelController:
    controller = ModelController()
    creations = [
        AclCreation(
            resource_type=2,
            resource_name=f"t{number}",
            resource_pattern_type=3,
            principal=f"User:u{number % 7}",
            host="*",
            operation=3,
            permission_type=3,
        )
        for number in range(COUNT)
    ]
    results = controller.handle(CreateAclsRequest(creations=creations)).results
    assert not any(result.error_code for result in results)
    return controller


@pytest.fixture
def compared(monkeypatch) -> list[int]:
    """Returns the number of comparisons, in a list of one."""
    counts, matches = [0], acls.AclFilter.matches

    def counting(acl_filter, entry):
        counts[0] += 1
        return matches(acl_filter, entry)

    monkeypatch.setattr(acls.AclFilter, "matches", counting)
    return counts


def acl_filter(name: str | None = None, principal: str | None = None, kind: int = 3) -> DeleteAclsFilter:
    return DeleteAclsFilter(
        resource_type_filter=2,
        resource_name_filter=name,
        pattern_type_filter=kind,
        principal_filter=principal,
        host_filter=None,
        operation=1,
        permission_type=1,
    )


def test_filters_that_name_entries_find_them_at_once(controller, compared) -> None:
    filters = [acl_filter(name=f"t{number}") for number in range(COUNT)]
    filters.append(acl_filter(name="t3", principal="User:u3"))
    filters.append(acl_filter(name="t3", principal="User:u4"))
    filters.append(acl_filter(principal="User:none"))
    results = controller.handle(DeleteAclsRequest(filters=filters)).filter_results
    assert [len(result.matching_acls) for result in results] == [1] * COUNT + [1, 0, 0]
    assert compared[0] <= COUNT + 2
    assert not controller.image.acls


def test_a_deletion_that_compares_too_much_is_refused(controller, compared, monkeypatch) -> None:
    monkeypatch.setattr(acls, "COMPARISONS_MAX", 10 * COUNT)
    filters = [acl_filter(principal="User:u0") for _ in range(1_000)]
    results = controller.handle(DeleteAclsRequest(filters=filters)).filter_results
    assert results[0].error_code == ErrorCode.NONE
    assert results[0].matching_acls
    assert results[-1].error_code == ErrorCode.POLICY_VIOLATION
    assert compared[0] <= 10 * COUNT


def test_others_run_while_entries_are_compared(controller, monkeypatch) -> None:
    """A long deletion yields, also with one filter, and removes all entries in one command."""
    context = controller.context()
    # Parts of the index, of the comparisons, the sorting and the answer of each filter; and between two filters.
    for size, filters, turns in ((COUNT, 1, 18), (COUNT, 5, 5 * 18 + 4), (COUNT // 3, 1, 2 + 2 + 29 + 29)):
        monkeypatch.setattr(acls, "SLICE_COMPARISONS", size)
        request = DeleteAclsRequest(filters=[acl_filter() for _ in range(filters)])
        result = acls.delete_acls(request, controller.image, context)
        slices = [len(records) for records in result.slices(DecisionView(controller.image, context))]
        assert slices == [0] * turns + [COUNT]
        for each in result.response.filter_results:
            names = [entry.resource_name for entry in each.matching_acls]
            assert names == sorted(f"t{number}" for number in range(COUNT))


def test_others_run_while_entries_are_added(controller, monkeypatch) -> None:
    """Each creation looks at all entries, of which a cluster may have 100,000; it adds its own in one command."""
    monkeypatch.setattr(acls, "SLICE_COMPARISONS", COUNT // 4)
    creations = [
        AclCreation(
            resource_type=2,
            resource_name=name,
            resource_pattern_type=3,
            principal="User:new",
            host="*",
            operation=3,
            permission_type=3,
        )
        for name in ("t0", "t1", "t0")
    ]
    result = acls.create_acls(CreateAclsRequest(creations=creations), controller.image, controller.context())
    slices = [len(records) for records in result.slices(DecisionView(controller.image, controller.context()))]
    assert slices == [0] * 4 + [2]
    assert [each.error_code for each in result.response.results] == [ErrorCode.NONE] * 3


def test_others_run_while_entries_are_described(controller, monkeypatch) -> None:
    """A description of all entries yields while it compares, and while it makes its answer, which is in order."""
    monkeypatch.setattr(acls, "SLICE_COMPARISONS", COUNT // 3)
    context = controller.context()
    request = DescribeAclsRequest(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    result = acls.describe_acls(request, controller.image, context)
    slices = list(result.slices(DecisionView(controller.image, context)))
    assert slices == [[]] * (2 + COUNT * acls.COMPARISONS_PER_MATCH // (COUNT // 3))
    names = [resource.resource_name for resource in result.response.resources]
    assert names == sorted(f"t{number}" for number in range(COUNT))
    assert [len(resource.acls) for resource in result.response.resources] == [1] * COUNT


def test_others_run_while_one_resource_is_described(controller, monkeypatch) -> None:
    """It may have all entries of a cluster: no slice sorts or describes more of them than another."""
    described = [0]

    def counting(**fields):
        described[0] += 1
        return acls_of_response(**fields)

    acls_of_response = acls.AclDescription
    monkeypatch.setattr(acls, "AclDescription", counting)
    monkeypatch.setattr(acls, "SLICE_COMPARISONS", acls.COMPARISONS_PER_MATCH * COUNT // 10)
    creations = [
        AclCreation(
            resource_type=2,
            resource_name="*",
            resource_pattern_type=3,
            principal=f"User:u{number:03}",
            host="*",
            operation=3,
            permission_type=3,
        )
        for number in reversed(range(COUNT))
    ]
    controller.handle(CreateAclsRequest(creations=creations))
    context = controller.context()
    request = DescribeAclsRequest(
        resource_type_filter=2,
        resource_name_filter="*",
        pattern_type_filter=3,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    result = acls.describe_acls(request, controller.image, context)
    most = before = 0
    for _ in result.slices(DecisionView(controller.image, context)):
        most, before = max(most, described[0] - before), described[0]
    assert (most, described[0]) == (COUNT // 10, COUNT)
    [resource] = result.response.resources
    assert [entry.principal for entry in resource.acls] == [f"User:u{number:03}" for number in range(COUNT)]


def test_a_creation_looks_at_entries_of_its_principals(controller, monkeypatch) -> None:
    """Whether an entry exists already is known without the names of all others' entries."""
    named, identity = [0], acls._identity

    def counting(entry):
        named[0] += 1
        return identity(entry)

    monkeypatch.setattr(acls, "_identity", counting)
    creation = AclCreation(
        resource_type=2,
        resource_name="t6",
        resource_pattern_type=3,
        principal="User:u6",
        host="*",
        operation=3,
        permission_type=3,
    )
    before = len(controller.image.acls)
    assert [result.error_code for result in controller.handle(CreateAclsRequest(creations=[creation])).results] == [0]
    assert len(controller.image.acls) == before
    assert named[0] <= COUNT // 7 + 5


def test_a_kind_of_pattern_that_is_unknown_here_matches_nothing(controller) -> None:
    """A newer client's kind of pattern must not be taken for all kinds."""
    request = DescribeAclsRequest(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=5,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    response = controller.handle(request)
    assert (response.error_code, response.resources) == (ErrorCode.NONE, [])


@pytest.mark.parametrize("field", ["resource_type_filter", "pattern_type_filter", "operation", "permission_type"])
def test_a_deletion_by_an_unknown_type_is_refused(controller, field: str) -> None:
    """Success without a match would say that no such entry is left. The other filters count, as in Kafka."""
    unknown = acl_filter()
    setattr(unknown, field, 99)
    results = controller.handle(DeleteAclsRequest(filters=[unknown, acl_filter(name="t1")])).filter_results
    assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert [len(result.matching_acls) for result in results] == [0, 1]
    assert len(controller.image.acls) == COUNT - 1


def test_a_creation_compares_entries_of_its_resource_alone(controller, monkeypatch) -> None:
    """One principal may have most entries of a cluster, and add one more."""
    looked, identity = [], acls._identity
    monkeypatch.setattr(acls, "_identity", lambda entry: looked.append(entry) or identity(entry))
    creation = AclCreation(
        resource_type=2,
        resource_name="t7",
        resource_pattern_type=3,
        principal="User:u0",
        host="*",
        operation=3,
        permission_type=3,
    )
    before = len(controller.image.acls)
    assert controller.handle(CreateAclsRequest(creations=[creation])).results[0].error_code == ErrorCode.NONE
    assert len(looked) <= 3
    assert len(controller.image.acls) == before, "it was there already"
