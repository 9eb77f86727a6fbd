"""Names of a package that are imported on first use."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest

from celm.base.lazy import lazy_attributes


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("package_of_test")
    module.__getattr__ = lazy_attributes("package_of_test", {"dumps": "json", "absent": "json"})  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "package_of_test", module)
    return module


def test_a_name_is_imported_on_first_use_and_then_kept(package: ModuleType) -> None:
    assert "dumps" not in vars(package)
    assert package.dumps is json.dumps
    assert vars(package)["dumps"] is json.dumps


def test_an_unknown_name_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="'package_of_test' has no attribute 'loads'"):
        _ = package.loads
    with pytest.raises(AttributeError, match="absent"):
        _ = package.absent
