"""A thesaurus of equivalent tensor programs: an ONNX model in, a faster equal model out, with evidence.

import tensaurus as ts
result = ts.optimize("model.onnx", time_limit=60)
result.save("fast.onnx")
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tensaurus._version import __version__
from tensaurus.system.errors import NotEqualError, TensaurusError

if TYPE_CHECKING:
    from tensaurus.check import verify
    from tensaurus.graph.onnx.model_file import load_model as load
    from tensaurus.optimizer.optimize import Result, optimize
    from tensaurus.optimizer.result.session import session

__all__ = [
    "NotEqualError",
    "Result",
    "TensaurusError",
    "__version__",
    "load",
    "optimize",
    "session",
    "verify",
]

# Imported when first asked for, so that `import tensaurus` costs nothing.
_HOMES = {
    "Result": ("tensaurus.optimizer.optimize", "Result"),
    "load": ("tensaurus.graph.onnx.model_file", "load_model"),
    "optimize": ("tensaurus.optimizer.optimize", "optimize"),
    "session": ("tensaurus.optimizer.result.session", "session"),
    "verify": ("tensaurus.check", "verify"),
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
