"""Goal: keywords of later drafts of JSON Schema change nothing of what the values of a schema are."""

import jsonschema
import pytest

from moldau.serialization.json_validation import compiled

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
LATER = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
TUPLE = {"type": "array", "prefixItems": [TEXT, NUMBER], "items": False}


@pytest.mark.parametrize(
    "schema",
    [
        LATER | TUPLE,
        LATER | {"type": "array", "prefixItems": [TEXT], "items": NUMBER},
        LATER | {"type": "array", "prefixItems": [TEXT, TUPLE]},
        {"$schema": "http://json-schema.org/draft-07/schema#"} | TUPLE,
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "prefixItems": [TEXT], "items": NUMBER},
    ],
)
def test_tuples_have_the_items_of_their_draft(schema):
    """``items`` counts for the items behind those of ``prefixItems`` from 2020 on, and for all of them before."""
    check, oracle = compiled(schema), jsonschema.validators.validator_for(schema)(schema)
    for value in ([], ["a"], ["a", 1], ["a", "b"], [1, 2], ["a", 1, 2], ["a", ["b", 1]], ["a", ["b", 1, 2]], [1]):
        try:
            check(value)
        except ValueError:
            assert not oracle.is_valid(value), value
        else:
            assert oracle.is_valid(value), value


def test_a_property_may_have_the_name_of_a_keyword():
    check = compiled({"properties": {"prefixItems": NUMBER, "items": TEXT}})
    check({"prefixItems": 1, "items": "a"})
    with pytest.raises(ValueError, match="items must be string"):
        check({"prefixItems": 1, "items": 2})
