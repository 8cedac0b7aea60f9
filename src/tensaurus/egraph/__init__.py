"""Holds all programs equal to a model in an e-graph, matches rules in it, and extracts the cheapest."""
