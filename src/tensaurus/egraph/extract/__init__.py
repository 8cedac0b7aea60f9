"""Solves extraction problems: chooses an e-node for each class, as cheap as possible, without an e-graph."""
