"""The recurrent cell that architecture search found: NasRNN."""
