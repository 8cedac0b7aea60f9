"""Are two programs, or two model files, the same function?  docs/equivalence.md states the criteria."""

from tensaurus.check.files.verdict import Verdict, verify
from tensaurus.check.inputs.model_interface import interface_differences
from tensaurus.check.program.field_check import FieldCheck, check_field

__all__ = ["FieldCheck", "Verdict", "check_field", "interface_differences", "verify"]
