"""Implements the e-graph: e-classes, congruence, e-class analysis, and proofs of equality."""
