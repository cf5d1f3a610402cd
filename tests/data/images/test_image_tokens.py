"""Images as tokens and back: nothing lost in intensities, the processor of transformers in palettes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.data.images.image_tokens import ColorPalette, PixelIntensities
from anyformer.data.images.processor import ImageProcessor
from anyformer.layers.raster import Raster

PICTURES = torch.randint(0, 256, (3, 3, 8, 12), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize("raster", [Raster(1, 1, 12, 3), Raster(2, 4, 3, 3)], ids=["rows", "blocks"])
def test_intensities_come_back(raster: Raster) -> None:
    codes = PixelIntensities((8, 12), raster)
    tokens = codes.encode(PICTURES)
    assert tokens.shape == (3, codes.length) == (3, 288) and codes.start == 256
    assert torch.equal(codes.decode(tokens), PICTURES)
    assert torch.equal(codes.encode(PICTURES.float() + 0.3), tokens)  # what a warp leaves of whole numbers


def test_the_order_of_intensities() -> None:
    """Row by row: red, green and blue of a pixel, then of the next. In blocks of 2 x 4: its eight pixels first."""
    rows = PixelIntensities((8, 12), Raster(1, 1, 12, 3)).encode(PICTURES)[0]
    assert rows[:4].tolist() == [int(PICTURES[0, c, 0, x]) for c, x in ((0, 0), (1, 0), (2, 0), (0, 1))]
    blocks = PixelIntensities((8, 12), Raster(2, 4, 3, 3)).encode(PICTURES)[0]
    assert blocks[12:15].tolist() == PICTURES[0, :, 1, 0].tolist()  # the second row of the first block
    assert blocks[24:27].tolist() == PICTURES[0, :, 0, 4].tolist()  # the second block
    assert blocks[72:75].tolist() == PICTURES[0, :, 2, 0].tolist()  # the second row of blocks


def test_what_is_given_are_whole_rows() -> None:
    """Three quarters of 8 rows are 6; of blocks of 4 rows there is room for one."""
    assert PixelIntensities((8, 12), Raster(1, 1, 12, 3)).prefix_length(0.75) == 6 * 36
    assert PixelIntensities((8, 12), Raster(4, 4, 3, 3)).prefix_length(0.75) == 4 * 36
    assert ColorPalette((8, 12), torch.zeros(4, 3)).prefix_length(0.75) == 6 * 12


def test_few_values_are_levels() -> None:
    codes = PixelIntensities((8, 12), Raster(1, 1, 12, 3), values=4)
    tokens = codes.encode(PICTURES)
    assert int(tokens.max()) == 3 and codes.start == 4
    assert sorted(set(codes.decode(tokens).flatten().tolist())) == [0, 85, 170, 255]
    assert torch.equal(codes.encode(codes.decode(tokens)), tokens)


CLUSTERS = torch.rand(40, 3, generator=torch.Generator().manual_seed(1)) * 2 - 1


@pytest.mark.parametrize("size", [(10, 10), (16, 16)], ids=["resized", "as it is"])
def test_palette_as_transformers(size: tuple[int, int], tmp_path: Path) -> None:
    """The ids that ImageGPT's own processor gives, read from the file that it writes."""
    image = pytest.importorskip("PIL.Image")
    theirs = _theirs(size)
    theirs.save_pretrained(tmp_path)
    content = (tmp_path / "preprocessor_config.json").read_bytes()
    processor = ImageProcessor.read(content, "file")
    palette = ColorPalette.read(json.loads(content), size, 40)
    smooth = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3), dtype=np.uint8)
    pictures = [image.fromarray(one).resize((16, 16), resample=2) for one in smooth]
    expected = theirs(pictures, return_tensors="pt")["input_ids"]
    ours = palette.encode(processor.stack([processor.resize(one)[0] for one in pictures])["pixels"])
    assert ours.shape == expected.shape == (2, size[0] * size[1])
    assert torch.equal(ours, torch.as_tensor(expected))


def _theirs(size: tuple[int, int]) -> Any:
    from transformers.models.imagegpt.image_processing_pil_imagegpt import ImageGPTImageProcessorPil

    return ImageGPTImageProcessorPil(clusters=CLUSTERS.tolist(), size={"height": size[0], "width": size[1]})


def test_palette_written_is_read_by_transformers(tmp_path: Path) -> None:
    from transformers.models.imagegpt.image_processing_pil_imagegpt import ImageGPTImageProcessorPil

    palette = ColorPalette((8, 12), CLUSTERS)
    content = palette.write(ImageProcessor(size=(8, 12)).write())
    (tmp_path / "preprocessor_config.json").write_bytes(content)
    theirs = ImageGPTImageProcessorPil.from_pretrained(tmp_path)
    assert torch.allclose(torch.as_tensor(theirs.clusters).float(), CLUSTERS)
    assert (theirs.size["height"], theirs.size["width"]) == (8, 12) and theirs.do_color_quantize
    again = ColorPalette.read(json.loads(content), (8, 12), 40)
    assert torch.equal(again.encode(PICTURES), palette.encode(PICTURES))


def test_a_palette_of_the_colors_there_are() -> None:
    """As many clusters as colors: each color is its own, and images of them come back."""
    colors = torch.tensor([[0, 0, 0], [255, 255, 255], [200, 30, 30], [30, 200, 30], [30, 30, 200]])
    pixels = colors[torch.arange(500) % 5]
    palette = ColorPalette.fit(pixels, 5, (8, 12))
    picture = colors[torch.arange(96) % 5].T.reshape(1, 3, 8, 12).to(torch.uint8)
    assert torch.equal(palette.decode(palette.encode(picture)), picture)
    with pytest.raises(af.ConfigError, match=r"5 .*colors.* 6"):
        ColorPalette.fit(pixels, 6, (8, 12))


def test_k_means_lowers_the_distance() -> None:
    """Means of clusters are nearer to the pixels than as many pixels picked at random."""
    pixels = PICTURES.permute(0, 2, 3, 1).reshape(-1, 3)
    fitted = ColorPalette.fit(pixels, 16, (8, 12))
    random = ColorPalette((8, 12), (pixels[::18][:16].float() - 127.5) / 127.5)
    errors = [(one.decode(one.encode(PICTURES)).double() - PICTURES).square().mean() for one in (fitted, random)]
    assert float(errors[0]) < 0.8 * float(errors[1])


def test_a_palette_of_another_size() -> None:
    with pytest.raises(af.ConfigError, match="clusters"):
        ColorPalette.read({"clusters": CLUSTERS.tolist()}, (8, 12), 41)
    with pytest.raises(af.ConfigError, match="clusters"):
        ColorPalette.read({}, (8, 12), 41)
