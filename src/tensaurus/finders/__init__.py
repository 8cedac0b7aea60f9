"""Sources of equalities beside the rules: fusion, fast convolutions, derivation, and rule synthesis."""
