"""Deck 000. Items in page order."""

from __future__ import annotations
