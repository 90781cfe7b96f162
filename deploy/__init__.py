"""How Blendstream and its broker run."""
