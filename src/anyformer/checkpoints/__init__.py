"""Checkpoints: anyformer's own folders and Hugging Face's, through one key table a family that runs both ways."""
