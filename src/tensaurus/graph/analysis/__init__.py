"""What is known of a whole program: constants, degrees, and how far constants move its results."""
