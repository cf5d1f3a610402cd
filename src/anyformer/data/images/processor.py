"""Image preprocessing: resize, crop, rescale, normalize, pad. The settings are read from and written to
preprocessor_config.json; the results equal those of transformers' processors.

`resize` works on one image on the CPU and returns 8-bit pixels; `normalize` works on a batch on any device.
Augmentation runs between the two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyformer.config import Settings
from anyformer.data.images.image_file import Array, original_size
from anyformer.errors import ConfigError, InputError, nearest
from anyformer.jsonfile import parse_object

FILE = "preprocessor_config.json"
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
BILINEAR, BICUBIC = 2, 3  # Pillow's filter codes
LARGEST_AREA = 2**25  # maximum number of pixels after resizing


@dataclass(frozen=True)
class ResizeTransform:
    """Maps coordinates of the image to those of the resized one: x becomes x * scale[1] - offset[1]."""

    scale: tuple[float, float]  # rows, columns
    offset: tuple[float, float]
    size: tuple[int, int]  # of the resized image
    original_size: tuple[int, int]  # of the image

    def points(self, points: Any) -> NDArray[np.float32]:
        """Map points [..., x, y, more]."""
        moved = np.array(points, dtype=np.float32)
        moved[..., 0] = moved[..., 0] * self.scale[1] - self.offset[1]
        moved[..., 1] = moved[..., 1] * self.scale[0] - self.offset[0]
        return moved

    def points_back(self, points: Any) -> NDArray[np.float32]:
        moved = np.array(points, dtype=np.float32)
        moved[..., 0] = (moved[..., 0] + self.offset[1]) / self.scale[1]
        moved[..., 1] = (moved[..., 1] + self.offset[0]) / self.scale[0]
        return moved

    def boxes(self, boxes: Any) -> NDArray[np.float32]:
        """Map boxes [n, 4]: left, top, right, bottom."""
        corners = np.asarray(boxes, dtype=np.float32).reshape(-1, 2, 2)
        return self.points(corners).reshape(-1, 4)

    def boxes_back(self, boxes: Any) -> NDArray[np.float32]:
        return self.points_back(np.asarray(boxes, dtype=np.float32).reshape(-1, 2, 2)).reshape(-1, 4)


@dataclass(frozen=True, kw_only=True)
class ImageProcessor(Settings):
    """`size` is exact; `shortest_edge` is the length of the shorter edge, unless the longer one would exceed
    `longest_edge`; `max_size` bounds both edges. Sizes are (rows, columns)."""

    size: tuple[int, ...] | None = None
    shortest_edge: int | None = None
    longest_edge: int | None = None
    max_size: tuple[int, ...] | None = None
    resample: int = BILINEAR
    crop: tuple[int, ...] | None = None
    rescale: float | None = 1 / 255
    mean: tuple[float, ...] | None = HALF["mean"]
    std: tuple[float, ...] | None = HALF["std"]
    pad: bool = False  # to the largest image of a batch, with a pixel_mask
    pad_size: tuple[int, ...] | None = None  # a minimum size to pad to
    channels: int = 3

    def check(self) -> None:
        for name in ("size", "max_size", "crop", "pad_size"):
            value = getattr(self, name)
            self.require(
                value is None or (len(value) == 2 and min(value) > 0),
                f"{name} is {value}; it must be two numbers above 0: rows and columns.",
            )
            self.require(
                value is None or value[0] * value[1] <= LARGEST_AREA,
                f"{name} is {value}; at most {LARGEST_AREA:,} pixels are allowed.",
            )
        for name in ("shortest_edge", "longest_edge"):
            value = getattr(self, name)
            self.require(
                value is None or 0 < value**2 <= LARGEST_AREA,
                f"{name} is {value}; it must be above 0, with at most {LARGEST_AREA:,} pixels.",
            )
        self.require(
            self.resample in range(6), f"resample is {self.resample}; it must be a filter code of Pillow, 0 to 5."
        )
        for name in ("mean", "std"):
            value = getattr(self, name)
            self.require(
                value is None or len(value) in (1, self.channels),
                f"{name} has {len(value or ())} numbers; it must have {self.channels}, one for each channel.",
            )
        self.require(self.std is None or min(self.std) > 0, f"std is {self.std}; it must be above 0.")
        self.require(
            self.longest_edge is None or self.shortest_edge is not None,
            "longest_edge needs shortest_edge, which is not set.",
        )

    @property
    def fixed(self) -> tuple[int, int] | None:
        """The size of every resized image; None if sizes differ."""
        found = self.crop if self.crop is not None else self.size
        return None if found is None else (found[0], found[1])

    @property
    def mode(self) -> str:
        return "L" if self.channels == 1 else "RGB"

    # One image.

    def resize(self, image: Any) -> tuple[Array, ResizeTransform]:
        """Resize and crop a PIL image to 8-bit pixels [channels, rows, columns]."""
        before = original_size(image)
        height, width = self.target(before)
        if height * width > LARGEST_AREA:
            raise InputError(
                f"An image of {before[1]} x {before[0]} pixels would be resized to {width} x {height}; crop it first."
            )
        if (width, height) != image.size:
            image = image.resize((width, height), resample=self.resample)
        pixels = np.asarray(image)
        pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        offset = (0, 0)
        if self.crop is not None:
            pixels, offset = center_crop(pixels, (self.crop[0], self.crop[1]))
        scale = height / before[0], width / before[1]
        return np.ascontiguousarray(pixels), ResizeTransform(scale, offset, pixels.shape[1:], before)

    def resize_mask(self, mask: Any, fill: int = 0) -> NDArray[Any]:
        """Resize and crop a mask (a PIL image or an array [rows, columns]) like its image, with nearest-neighbor
        sampling."""
        from anyformer.data.images.image_file import pillow

        image = mask if hasattr(mask, "resize") and hasattr(mask, "getbands") else None
        if image is None:
            image = pillow().Image.fromarray(np.asarray(mask))
        height, width = self.target((image.size[1], image.size[0]))
        values = np.asarray(image.resize((width, height), resample=0) if (width, height) != image.size else image)
        return values if self.crop is None else center_crop(values[None], (self.crop[0], self.crop[1]), fill)[0][0]

    def target(self, before: tuple[int, int]) -> tuple[int, int]:
        """The size after resizing."""
        height, width = before
        if self.size is not None:
            return self.size[0], self.size[1]
        if self.shortest_edge is not None:
            return _by_shortest(before, self.shortest_edge, self.longest_edge)
        if self.max_size is not None:
            rows, columns = self.max_size
            if rows * width <= columns * height:  # the limiting edge gets its exact length
                return rows, max(width * rows // height, 1)
            return max(height * columns // width, 1), columns
        return before

    # A batch.

    def normalize(self, pixels: Tensor, sizes: Tensor | None = None) -> dict[str, Tensor]:
        """pixel_values [B, C, H, W] of pixels from 0 to 255. With padding: zeros outside the `sizes` [B, 2], and
        pixel_mask [B, H, W] with 1 inside."""
        values = pixels.float()
        values = values * self.rescale if self.rescale is not None else values
        if self.mean is not None and self.std is not None:
            values = (values - constant(self.mean, values.device)) / constant(self.std, values.device)
        if sizes is None:
            return {"pixel_values": values}
        inside = valid_pixels(sizes, pixels.shape[-2], pixels.shape[-1])
        return {"pixel_values": values * inside.unsqueeze(1), "pixel_mask": inside.long()}

    def denormalize(self, values: Tensor) -> Tensor:
        """Invert `normalize`: pixel_values to 8-bit pixels from 0 to 255."""
        values = values.float()
        if self.mean is not None and self.std is not None:
            values = values * constant(self.std, values.device) + constant(self.mean, values.device)
        values = values / self.rescale if self.rescale is not None else values
        return values.round().clamp(0, 255).to(torch.uint8)

    def stack(self, placed: Sequence[Array]) -> dict[str, Tensor]:
        """Stack images to a batch: `pixels` [B, C, H, W], 8 bits; with padding also their `sizes` [B, 2]."""
        if not self.pad:
            return {"pixels": torch.from_numpy(np.stack(placed))}
        sizes = np.array([one.shape[1:] for one in placed])
        height, width = sizes.max(axis=0) if self.pad_size is None else self.pad_size
        pixels = np.zeros((len(placed), placed[0].shape[0], height, width), dtype=np.uint8)
        for i, one in enumerate(placed):
            pixels[i, :, : one.shape[1], : one.shape[2]] = one
        return {"pixels": torch.from_numpy(pixels), "sizes": torch.from_numpy(sizes)}

    def __call__(self, images: Sequence[Any]) -> dict[str, Tensor]:
        """Preprocess PIL images to pixel_values (and pixel_mask)."""
        stacked = self.stack([self.resize(image)[0] for image in images])
        return self.normalize(stacked["pixels"], stacked.get("sizes"))

    # Files.

    @classmethod
    def read(cls, content: bytes, where: str) -> Self:
        """Read a preprocessor_config.json."""
        config = parse_object(content, where, error=ConfigError)
        try:
            return cls(**read_config(config))
        except (ConfigError, TypeError, ValueError, KeyError, OverflowError) as error:
            raise ConfigError(f"{where}: {error}") from None

    def write(self) -> bytes:
        config: dict[str, Any] = {"image_processor_type": "DetrImageProcessor" if self.pad else "ViTImageProcessor"}
        if self.crop is not None:
            config["image_processor_type"] = "DeiTImageProcessor" if self.size is not None else "CLIPImageProcessor"
        config["do_resize"] = self.size is not None or self.shortest_edge is not None or self.max_size is not None
        if self.size is not None:
            config["size"] = {"height": self.size[0], "width": self.size[1]}
        elif self.shortest_edge is not None:
            longest = {} if self.longest_edge is None else {"longest_edge": self.longest_edge}
            config["size"] = {"shortest_edge": self.shortest_edge, **longest}
        elif self.max_size is not None:
            config["size"] = {"max_height": self.max_size[0], "max_width": self.max_size[1]}
        config |= {"resample": self.resample, "do_center_crop": self.crop is not None}
        config |= {"do_rescale": self.rescale is not None, "rescale_factor": self.rescale}
        config |= {"do_normalize": self.mean is not None, "image_mean": self.mean, "image_std": self.std}
        for name, value in (("crop_size", self.crop), ("pad_size", self.pad_size)):
            if value is not None:
                config[name] = {"height": value[0], "width": value[1]}
        config["do_pad"] = self.pad
        return (json.dumps(config, indent=2) + "\n").encode()


@cache
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """One number for each channel, cached on the device to avoid a transfer in each step."""
    return torch.tensor(values, device=device).view(-1, 1, 1)


def center_crop(pixels: NDArray[Any], size: tuple[int, int], fill: int = 0) -> tuple[NDArray[Any], tuple[int, int]]:
    """Center crop of [channels, rows, columns], padded if it is too small; and the offset of the crop."""
    top, left = ((have - want) // 2 for have, want in zip(pixels.shape[1:], size, strict=True))
    result = np.full((pixels.shape[0], *size), fill, dtype=pixels.dtype)
    inside = pixels[:, max(top, 0) : top + size[0], max(left, 0) : left + size[1]]
    down, right = max(-top, 0), max(-left, 0)
    result[:, down : down + inside.shape[1], right : right + inside.shape[2]] = inside
    return result, (top, left)


def valid_pixels(sizes: Tensor, height: int, width: int) -> Tensor:
    """[B, height, width]: True inside images of the given sizes."""
    rows = torch.arange(height, device=sizes.device) < sizes[:, :1]
    columns = torch.arange(width, device=sizes.device) < sizes[:, 1:]
    return rows.unsqueeze(2) & columns.unsqueeze(1)


def _by_shortest(before: tuple[int, int], shortest: int, longest: int | None) -> tuple[int, int]:
    """transformers rounds down, except for the edge that `longest` limits."""
    short, long = min(before), max(before)
    exact = float(shortest)
    if longest is not None and long / short * shortest > longest:
        exact = longest * short / long
    if short == round(exact):
        return before
    edges = max(round(exact), 1), max(int(exact * long / short), 1)
    return edges if before[0] <= before[1] else edges[::-1]


# Defaults of transformers' processors.
_PLAIN = {"resample": BILINEAR, "size": {"height": 224, "width": 224}, "image_mean": HALF["mean"]}
_PLAIN |= {"image_std": HALF["std"]}
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_DETR = {"size": {"shortest_edge": 800, "longest_edge": 1333}, "do_pad": True}
_DETR |= {"image_mean": IMAGENET["mean"], "image_std": IMAGENET["std"]}
HF_DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": {},
    "DeiT": {
        "resample": BICUBIC,
        "size": {"height": 256, "width": 256},
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
    },
    "Detr": _DETR,
    "ConditionalDetr": _DETR,
    "CLIP": {
        "resample": BICUBIC,
        "size": {"shortest_edge": 224},
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
        "image_mean": _CLIP_MEAN,
        "image_std": _CLIP_STD,
    },
    "Beit": {
        "resample": BICUBIC,
        "size": {"height": 256, "width": 256},
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
    },
    "ImageGPT": {"size": {"height": 256, "width": 256}},  # its colors: data/images/image_tokens.py
    "ConvNext": {
        "size": {"shortest_edge": 384},
        "crop_pct": 224 / 256,
        "image_mean": IMAGENET["mean"],
        "image_std": IMAGENET["std"],
    },
}
HF_DEFAULTS["VitPose"] = {
    "size": {"height": 256, "width": 192},
    "image_mean": IMAGENET["mean"],
    "image_std": IMAGENET["std"],
}
HF_DEFAULTS["ViTHybrid"] = {**HF_DEFAULTS["CLIP"]}
HF_DEFAULTS["VideoMAE"] = {
    **{"size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}}
}


def processor_type(config: Mapping[str, Any]) -> str:
    """ViTImageProcessor, ViTFeatureExtractor, ViTImageProcessorFast -> ViT"""
    name = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "ViT")
    for ending in ("Fast", "Pil", "ImageProcessor", "FeatureExtractor"):
        name = name.removesuffix(ending)
    if name not in HF_DEFAULTS:
        raise ConfigError(
            f'preprocessor_config.json has the image processor "{name}ImageProcessor"; supported are'
            f" {', '.join(HF_DEFAULTS)}.{nearest(name, HF_DEFAULTS)}"
        )
    return name


def read_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Convert fields of transformers to ours."""
    kind = processor_type(config)
    fields = {**_PLAIN, **HF_DEFAULTS[kind], **{name: value for name, value in config.items() if value is not None}}
    if fields.get("size_divisor"):
        raise ConfigError(f'"size_divisor" is {fields["size_divisor"]}; only None is supported.')
    ours: dict[str, Any] = {"resample": int(fields["resample"])}
    if fields.get("do_resize", True):
        ours |= _read_size(fields, square=kind not in ("Detr", "ConditionalDetr", "CLIP", "ConvNext", "ViTHybrid"))
    if kind == "ConvNext":
        ours |= _convnext(ours.pop("shortest_edge"), float(fields["crop_pct"])) if "shortest_edge" in ours else {}
    elif fields.get("do_center_crop"):
        ours["crop"] = _pair(fields["crop_size"])
    ours["rescale"] = float(fields.get("rescale_factor", 1 / 255)) if fields.get("do_rescale", True) else None
    normal = fields.get("do_normalize", True)
    ours["mean"] = tuple(float(x) for x in fields["image_mean"]) if normal else None
    ours["std"] = tuple(float(x) for x in fields["image_std"]) if normal else None
    ours["channels"] = len(fields["image_mean"]) if normal else 3
    if ours["channels"] not in (1, 3):
        raise ConfigError(f'"image_mean" has {ours["channels"]} numbers; it must have 1 or 3.')
    ours["pad"] = bool(config.get("do_pad", config.get("pad_and_return_pixel_mask", fields.get("do_pad", False))))
    ours["pad_size"] = _pair(fields["pad_size"]) if fields.get("pad_size") else None
    return ours


def _read_size(fields: Mapping[str, Any], square: bool) -> dict[str, Any]:
    size = fields["size"]
    if isinstance(size, int):
        longest = {"longest_edge": fields["max_size"]} if "max_size" in fields else {}
        size = {"height": size, "width": size} if square else {"shortest_edge": size, **longest}
    if isinstance(size, (list, tuple)):
        size = {"height": size[0], "width": size[1]}
    if "height" in size:
        return {"size": _pair(size)}
    if "shortest_edge" in size:
        return {"shortest_edge": int(size["shortest_edge"]), "longest_edge": size.get("longest_edge")}
    if "max_height" in size:
        return {"max_size": (int(size["max_height"]), int(size["max_width"]))}
    raise ConfigError(
        f'"size" is {size}; it must have "height" and "width", "shortest_edge", or "max_height" and "max_width".'
    )


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    if isinstance(size, Mapping):
        return int(size["height"]), int(size["width"])
    return int(size[0]), int(size[1])


def _convnext(size: int, share: float) -> dict[str, Any]:
    """ConvNeXt: small sizes are cropped from a larger image; large ones are resized to a square."""
    if size >= 384:
        return {"size": (size, size)}
    return {"shortest_edge": int(size / share), "crop": (size, size)}
