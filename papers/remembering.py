"""What several systems of one study need and is dear to make, made once and forgotten with the study."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from papers.study import Study

T = TypeVar("T")

_kept: WeakKeyDictionary[Study, dict[Hashable, Any]] = WeakKeyDictionary()


def remembered(study: Study, key: Hashable, make: Callable[[], T]) -> T:
    """Return what ``make`` gives, of an earlier call with the same study and key if there was one.

    What is made must depend on the study and the key alone, so that it is the same whichever system asks first.
    """
    found = _kept.setdefault(study, {})
    if key not in found:
        found[key] = make()
    return cast(T, found[key])
