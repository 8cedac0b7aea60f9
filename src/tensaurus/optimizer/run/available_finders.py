"""Names the finders that users can exclude with `--without`, to see what each of them gains."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tensaurus.egraph.core.finder_protocol import Finder
from tensaurus.finders.bilinear import Bilinear
from tensaurus.finders.derive import Derive
from tensaurus.finders.fuse import Blocked, Fuse
from tensaurus.finders.mutate import Mutate
from tensaurus.system.errors import TensaurusError

__all__ = ["FINDERS", "SUBNORMALS", "WIDENING", "exclude_finders", "require_finders"]

FINDERS: dict[str, type] = {kind.__name__.lower(): kind for kind in (Bilinear, Blocked, Derive, Fuse, Mutate)}

# No finders, but done before the search:
SUBNORMALS = "subnormals"  # subnormal constants become 0
WIDENING = "widening"  # what is of half precision is computed in float32


def require_finders(names: Collection[str]) -> None:
    """Raise TensaurusError for a name that cannot be excluded."""
    for name in names:
        if name not in (*FINDERS, SUBNORMALS, WIDENING):
            known = ", ".join((*FINDERS, SUBNORMALS, WIDENING))
            raise TensaurusError(f"unknown --without {name!r}", remedy=f"Choose from {known}.")


def exclude_finders(finders: Iterable[Finder], excluded: Collection[str]) -> tuple[Finder, ...]:
    """Return the finders whose names are not in `excluded`."""
    kinds = tuple(FINDERS[name] for name in excluded if name in FINDERS)
    return tuple(finder for finder in finders if not isinstance(finder, kinds))
