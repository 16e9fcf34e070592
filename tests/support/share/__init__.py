"""Parts of the tests of share groups."""
