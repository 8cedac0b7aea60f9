"""What proposes equalities beside the rules, by names that people can leave out."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tensaurus.egraph.core.finder_protocol import Finder
from tensaurus.finders.bilinear import Bilinear
from tensaurus.finders.derive import Derive
from tensaurus.finders.fuse import Blocked, Fuse
from tensaurus.system.errors import TensaurusError

__all__ = ["FINDERS", "SUBNORMALS", "left", "require_finders"]

FINDERS: dict[str, type] = {kind.__name__.lower(): kind for kind in (Bilinear, Blocked, Derive, Fuse)}

SUBNORMALS = "subnormals"  # that become 0, before all finders


def require_finders(names: Collection[str]) -> None:
    """Raises TensaurusError for a name that none of them has."""
    for name in names:
        if name not in (*FINDERS, SUBNORMALS):
            known = ", ".join((*FINDERS, SUBNORMALS))
            raise TensaurusError(f"unknown --without {name!r}", remedy=f"Choose from {known}.")


def left(finders: Iterable[Finder], without: Collection[str]) -> tuple[Finder, ...]:
    """Those that are not left out."""
    kinds = tuple(FINDERS[name] for name in without if name in FINDERS)
    return tuple(finder for finder in finders if not isinstance(finder, kinds))
