"""Packages that import their public names when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def names_of(package: str, modules: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package (PEP 562): it imports a name from the module that defines it.

    Parameters
    ----------
    package : str
        Name of the package.
    modules : mapping of str to iterable of str
        The public names, by the module that defines them.

    Raises
    ------
    AttributeError
        By the returned function, for a name that is not public.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in module_of:
            message = f"module {package!r} has no attribute {name!r}; public names: {', '.join(sorted(module_of))}"
            raise AttributeError(message)
        value = getattr(importlib.import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
