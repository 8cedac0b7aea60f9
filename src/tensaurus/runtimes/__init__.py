"""What runs a model, how long that takes, and what the search expects it to take."""
