"""The normal form of an expression: equal expressions become equal records."""
