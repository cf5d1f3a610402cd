"""A data set to look at: the images of a folder that was named when the explorer was started, and no others."""

from __future__ import annotations

from pathlib import Path

from anyformer.data.images.image_file import ImageFile, is_image
from anyformer.errors import DataError

MOST = 2000  # images
DEPTH = 3  # folders below the one that was named


class ImageFolder:
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    @classmethod
    def of(cls, folder: Path) -> ImageFolder:
        if not folder.is_dir():
            raise DataError(f"{folder} is no folder; --images takes a folder with images in it.")
        found = sorted(path for level in range(DEPTH) for path in folder.glob("*/" * level + "*") if is_image(path))
        inside = [path for path in found if path.is_file() and not path.is_symlink()]
        if not inside:
            raise DataError(f"{folder} has no images in it.")
        return cls(inside[:MOST])

    def __len__(self) -> int:
        return len(self.paths)

    def some(self, first: int, n: int) -> list[ImageFile]:
        return [ImageFile(path.name, lambda path=path: path.open("rb")) for path in self.paths[first : first + n]]  # type: ignore[misc]
