"""Nodes in the form that a given opset has: operators, or their expansions."""
