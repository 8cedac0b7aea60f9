"""The e-graph itself: e-classes, congruence, class analyses, and proofs of equality."""
