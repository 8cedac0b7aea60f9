"""Are two programs, or two model files, the same function?  docs/equivalence.md states the criteria."""

from tensaurus.equivalence.field_check import FieldCheck, check_field
from tensaurus.equivalence.interface import same_interface
from tensaurus.equivalence.verdict import Verdict, verify

__all__ = ["FieldCheck", "Verdict", "check_field", "same_interface", "verify"]
