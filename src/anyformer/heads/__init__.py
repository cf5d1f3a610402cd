"""Heads: read a stage's tokens; return the output fields of transformers and, with labels, the loss."""
