"""Images: reading, resizing, augmentation and drawing. Pillow is imported when an image is opened."""
