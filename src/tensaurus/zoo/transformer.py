"""BERT encoders, and Longformer's attention over a sliding window."""
