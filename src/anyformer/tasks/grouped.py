"""Rows about the same image, merged."""

from __future__ import annotations

from anyformer.data.images.read import ImageRows
from anyformer.data.rows import Rows
from anyformer.data.tables.formats import Row


def group_by_image(rows: Rows, column: str) -> Rows:
    """One row an image, with all that its rows say in `column`, as a list; rows stay as they are where none shares a
    image with another."""
    places: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        places.setdefault(row["image"].name, []).append(i)
    if len(places) == len(rows):
        return rows
    groups = list(places.values())

    def make(i: int) -> Row:
        every = [rows[place] for place in groups[i]]
        texts = [text for row in every for text in ([row[column]] if isinstance(row[column], str) else row[column])]
        return {**every[0], column: texts}

    return ImageRows(
        rows.path, len(groups), make, lambda i: rows.location(groups[i][0]), rows.fingerprint + column, rows.metadata
    )
