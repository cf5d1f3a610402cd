"""Image reconstruction from a few patches: pre-training of masked autoencoders, without labels (He et al. 2022).

reconstruct = af.task("reconstruct", "folder")
print(reconstruct("cat.jpg"))           # squared error 0.31 on 48 of 64 masked patches
reconstruct("cat.jpg").draw()           # visible patches, reconstruction, and original

Fine-tune the encoder with `anyformer train classify-image --recipe FOLDER`; with train.freeze=encoder.* only the new
head is trained (linear probing).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from anyformer.config import Settings
from anyformer.data.images import draw
from anyformer.data.images.augment import Augmentation
from anyformer.data.images.image_file import ImageFile, pillow
from anyformer.data.rows import Rows
from anyformer.errors import ConfigError
from anyformer.heads.pixels import PixelHead
from anyformer.model import Model
from anyformer.tasks.answers import Answer, Drawing
from anyformer.tasks.base import Batch, Column, Loss, Metrics, Progress, answering
from anyformer.tasks.inputs import ImageInput
from anyformer.tasks.picture import ImageOptions, PictureTask, takes_images
from anyformer.tasks.schedule_presets import schedule_for

GRAY = 128  # of 255: where a patch is hidden


@dataclass(frozen=True)
class Reconstruction(Answer):
    """`error` is the mean squared error of the hidden patches, in the units of the loss. `draw()` returns the visible
    patches, the reconstruction, and the image."""

    error: float
    hidden: int
    patches: int
    draw: Drawing = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"squared error {self.error:.3f} on {self.hidden} of {self.patches} masked patches"


@dataclass(frozen=True, kw_only=True)
class ReconstructOptions(ImageOptions):
    augment: Augmentation = Augmentation(crop=(0.3, 1.0), flip=0.5)


class Reconstruct(PictureTask[ImageInput, Reconstruction]):
    name = "reconstruct"
    about = "reconstruct images from a few patches (masked autoencoder pre-training)"
    columns = (Column("image"),)
    options_class = ReconstructOptions
    settings: ReconstructOptions
    metric, larger_is_better = "loss", False
    steady = True
    wanted = "a masked autoencoder"

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return "mask_ratio" in config.field_names() and takes_images(config)

    def __init__(self, model: Model, *more: Any, **options: Any) -> None:
        super().__init__(model, *more, **options)
        if not model.config.to_json()["mask_ratio"]:
            raise ConfigError("model.mask_ratio is 0, so no patch is hidden; it must be above 0.")

    def loss(self, batch: Batch) -> Loss:
        """Of the patches that are dropped, which the model draws anew for every batch."""
        count = torch.full((), len(batch["pixel_values"]), device=batch["pixel_values"].device)
        return Loss(self.model(pixel_values=batch["pixel_values"]).loss * count, count)

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        """The squared error of hidden patches; which ones are hidden is the same every time."""
        total, count = 0.0, 0
        chance = torch.Generator().manual_seed(0)
        with answering(self.model):
            for _, batch in self.batches_of(self.prepared(rows), progress=progress):
                pixels = batch["pixel_values"]
                total += float(self.model(pixel_values=pixels, noise=self.noise(pixels, chance)).loss) * len(pixels)
                count += len(pixels)
        return {"loss": total / count, **self.skipped()}

    def noise(self, pixels: Tensor, chance: torch.Generator) -> Tensor:
        """[B, patches]: the patches with the largest of it are hidden."""
        height, width = self.head.size
        patches = (pixels.shape[2] // height) * (pixels.shape[3] // width)
        return torch.rand(len(pixels), patches, generator=chance).to(pixels.device)

    @property
    def head(self) -> PixelHead:
        return cast("PixelHead", self.model.heads["pixels"])

    def answer(self, pictures: Sequence[ImageFile], **options: Any) -> list[Reconstruction]:
        return [self._answer(picture) for picture in pictures]

    def _answer(self, picture: ImageFile) -> Reconstruction:
        with answering(self.model):
            pixels = self.look_at([picture])[0]["pixel_values"]
            out = self.model(pixel_values=pixels, noise=self.noise(pixels, torch.Generator().manual_seed(0)))
        hidden, patches = int(out.mask.sum()), out.mask.shape[1]
        return Reconstruction(float(out.loss), hidden, patches, lambda: self.draw(pixels, out.logits, out.mask))

    def draw(self, pixels: Tensor, logits: Tensor, mask: Tensor) -> Any:
        """The visible patches, the reconstruction, and the original image at the size of the model."""
        pixels = pixels.float()
        made = self.head.reconstruct(logits.float(), pixels, mask)
        pixels = pixels[:, :, : made.shape[2], : made.shape[3]]  # what no patch covers is not shown
        grid = (made.shape[2] // self.head.size[0], made.shape[3] // self.head.size[1])
        hidden = torch.nn.functional.interpolate(mask.float().view(-1, 1, *grid), size=made.shape[2:]) > 0
        gray = self.processor.normalize(torch.full_like(pixels, GRAY))["pixel_values"]
        seen = torch.where(hidden, gray, pixels)
        shown = [self.processor.denormalize(one)[0].permute(1, 2, 0).cpu().numpy() for one in (seen, made, pixels)]
        images = [pillow().Image.fromarray(one.squeeze(-1) if one.shape[-1] == 1 else one) for one in shown]
        return draw.side_by_side(images, ["visible patches", "reconstruction", "original"])

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        size = 1024 if rows > 20_000 else 256 if rows > 2000 else 32
        return schedule_for(rows, 200, size=size, lr=1e-3, evals=20, saves=10, weight_decay=0.05)
