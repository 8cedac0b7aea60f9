"""What people call: the command line, the report, the bench and the zoo of models."""
