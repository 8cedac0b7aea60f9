"""What people call: the command line, the reports, the benchmark, and the zoo of models."""
