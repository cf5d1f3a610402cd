"""Heads: read a stage's tokens, give the ecosystem's output fields and, with labels, the loss."""
