"""Finds patterns in an e-graph, applies rules to their matches, and explores round by round."""
