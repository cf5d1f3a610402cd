"""The demo: what comes with anyformer put to work on a page (`tour`), or a model trained from nothing (`numbers`)."""
