"""Models to optimize: the networks of the papers, and pretrained models that public packages ship."""
