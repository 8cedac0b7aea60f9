"""Which e-node of each class: an extraction problem in, its cheapest choice out; no e-graph is needed."""
