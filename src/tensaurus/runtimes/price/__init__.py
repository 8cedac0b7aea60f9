"""What a program costs: the roofline, measured operators, and costs in context."""
