"""Patterns found in an e-graph, rules applied to their matches, and exploration round by round."""
