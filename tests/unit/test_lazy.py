"""The lazy import of a package's public names."""

from __future__ import annotations

import sys
import types

import pytest

from reranker.lazy import names_of


def test_a_name_is_imported_when_it_is_first_used(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("a_package")
    monkeypatch.setitem(sys.modules, "a_package", package)
    package.__getattr__ = names_of("a_package", {"json": ("loads",), "math": ("pi", "tau")})  # type: ignore[method-assign]
    assert "tau" not in vars(package)
    assert package.tau == pytest.approx(6.2831853)
    assert set(vars(package)) >= {"tau"} and "pi" not in vars(package)


def test_a_name_that_is_not_public_is_an_error_that_lists_those_that_are() -> None:
    get = names_of("a_package", {"math": ("tau", "pi"), "json": ("loads",)})
    with pytest.raises(AttributeError, match=r"'a_package' has no attribute 'e'; public names: loads, pi, tau"):
        get("e")
