"""What a program costs: measured times, the machine they were measured on, and where they are kept."""
