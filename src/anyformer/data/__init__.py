"""Data: files -> rows -> prepared examples -> batches, never held in memory as a whole."""
