"""What is computed about an expression: work, bounds, degree, regions and index maps."""
