"""Declare all operators: importing this package imports every module in it, in order of name."""

import importlib
import pkgutil

from tensaurus.ops.declare import Op, TensorType, Untypable, registry

for _module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = ["Op", "TensorType", "Untypable", "registry"]
