"""The images of the folder given by `--images`. No other files are read."""

from __future__ import annotations

from pathlib import Path

from anyformer.data.images.image_file import ImageFile, is_image
from anyformer.errors import DataError

MAX_IMAGES = 2000
MAX_DEPTH = 3  # levels of subfolders


class ImageFolder:
    """Paths of the images of a folder."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    @classmethod
    def of(cls, folder: Path) -> ImageFolder:
        """Find the images of a folder and its subfolders; symbolic links are ignored."""
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder; --images needs a folder of images.")
        found = sorted(path for level in range(MAX_DEPTH) for path in folder.glob("*/" * level + "*") if is_image(path))
        inside = [path for path in found if path.is_file() and not path.is_symlink()]
        if not inside:
            raise DataError(f"{folder} contains no images.")
        return cls(inside[:MAX_IMAGES])

    def __len__(self) -> int:
        return len(self.paths)

    def some(self, first: int, n: int) -> list[ImageFile]:
        """Return up to `n` images, starting at index `first`."""
        return [ImageFile(path.name, lambda path=path: path.open("rb")) for path in self.paths[first : first + n]]  # type: ignore[misc]
