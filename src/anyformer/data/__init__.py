"""Data: files -> rows -> prepared examples -> batches, none of it ever as one list in memory."""
