"""What users read about a model: its explanation, its profile, the benchmark's table and page."""
