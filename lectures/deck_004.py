"""Deck 004. Items in page order."""

from __future__ import annotations
