"""Adapters of other libraries to models of ours, each in a module that imports its library."""
