"""Standard metrics as pure functions on lists, with signatures where the field uses them."""
