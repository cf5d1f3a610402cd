"""The field's own metrics, as pure functions on lists; where the field has signatures, with the signature."""
