"""Sounds: files become waves, waves become spectrograms."""
