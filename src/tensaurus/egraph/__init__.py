"""All equal programs at once: e-graph, matching and exploration, exact extraction."""
