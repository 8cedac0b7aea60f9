"""Models to optimize: pretrained ones that public packages ship."""
