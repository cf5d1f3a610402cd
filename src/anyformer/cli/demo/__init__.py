"""The demo: run all installed models and write a page (`tour`), or train a small translator (`number_translation`)."""
