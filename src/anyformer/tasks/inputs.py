"""Types of what tasks are called with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike
    from typing import Any, TypeAlias

    import numpy as np
    from PIL.Image import Image
    from torch import Tensor

    from anyformer.data.audio.audio_file import Audio
    from anyformer.data.images.image_file import ImageFile

    Array: TypeAlias = np.ndarray[Any, Any]
    TextPair: TypeAlias = tuple[str, str] | Mapping[str, str] | str  # a line has a tab between the two texts
    File: TypeAlias = str | PathLike[str] | bytes
    ImageInput: TypeAlias = File | Array | Image | ImageFile
    AudioInput: TypeAlias = File | tuple[int, Array | Tensor] | Mapping[str, object] | Audio
    VideoInput: TypeAlias = File | Array
    SetInput: TypeAlias = str | Mapping[str, object] | Array  # a row of a table, or a set of points
else:  # imported without PIL
    TextPair = ImageInput = AudioInput = VideoInput = SetInput = object
