"""make quick finds the tests of what changed."""

from __future__ import annotations

from tests import quick


def test_tests_of_changed_files() -> None:
    found = quick.tests_of(["src/anyformer/core/masks.py", "tests/core/test_tokens.py", "docs/plan.md"])
    assert {"tests/core/test_masks.py", "tests/core/test_tokens.py", *quick.ALWAYS} == set(found)


def test_a_module_without_tests_of_its_own_has_those_of_its_package() -> None:
    assert "tests/tokenizers/test_load.py" in quick.tests_of(["src/anyformer/tokenizers/token_bytes.py"])
