"""Times measured: of whole models, of single operators, and where they are kept."""
