"""All equal programs at once: e-graph, saturation, proofs."""
