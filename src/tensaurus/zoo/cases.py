"""Single operators and small groups of them: the papers' case studies."""
