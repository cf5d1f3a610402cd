"""Images: where they lie, how they are read, resized, augmented and drawn upon. Pillow loads when one is opened."""
