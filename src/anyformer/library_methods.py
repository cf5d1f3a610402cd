"""The methods of transformers' models that other libraries call: Trainer, peft, accelerate and the like."""

from __future__ import annotations

from os import PathLike
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from anyformer.config import Settings
from anyformer.core.stack import Stack
from anyformer.errors import InputError
from anyformer.heads.language import LanguageHead
from anyformer.inputs.text import TextInput


class LibraryMethods(nn.Module):
    """Base class of Model: what libraries written for transformers' models ask of one."""

    config: Settings
    names: list[str]
    family: str
    generation_config: Any = None  # which libraries write; `generate` takes one as an argument
    accepts_loss_kwargs: bool = False  # whether `forward` takes num_items_in_batch

    @property
    def main_input_name(self) -> str:
        """The name of the first input."""
        return self.names[0]

    @property
    def name_or_path(self) -> str:
        """The name that model cards show."""
        return self.family

    @property
    def loss_type(self) -> str | None:
        """The name of the loss, if it is that of the next token: Trainer counts labels by it."""
        shifts = any(isinstance(module, LanguageHead) and module.config.shift for module in self.modules())
        return "ForCausalLMLoss" if shifts else None

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """The number of parameters; tied ones count once."""
        tables = [module.weight for module in self.modules() if isinstance(module, nn.Embedding)]
        left_out = {id(table) for table in tables} if exclude_embeddings else set()
        counted = [p for p in self.parameters() if id(p) not in left_out and (p.requires_grad or not only_trainable)]
        return sum(p.numel() for p in counted)

    def _word_input(self) -> TextInput:
        found = next((module for module in self.modules() if isinstance(module, TextInput)), None)
        if found is None:
            raise InputError(f"A {self.family} model has no table of words.")
        return found

    def get_input_embeddings(self) -> nn.Embedding:
        """The table of words that the input is looked up in."""
        return self._word_input().words

    def get_output_embeddings(self) -> nn.Linear | None:
        """The layer that gives the logits of words; None if the model has none."""
        heads = [module for module in self.modules() if isinstance(module, LanguageHead)]
        return heads[0].words if heads else None

    def resize_token_embeddings(self, new_num_tokens: int | None = None, **options: object) -> nn.Embedding:
        """Give the model a vocabulary of another size, in place, and return the table. Words keep their vectors; a new
        one begins as the mean of all. Parameters of other shapes are new, so make the optimizer afterwards."""
        if new_num_tokens is None or new_num_tokens == self.get_input_embeddings().num_embeddings:
            return self.get_input_embeddings()
        from anyformer.checkpoints.resize import resize_vocabulary

        resized = resize_vocabulary(self, new_num_tokens)  # type: ignore[arg-type]
        mine = dict(self.named_modules(remove_duplicate=False))
        for path, module in resized.named_modules(remove_duplicate=False):
            for name, parameter in mine[path]._parameters.items():
                if parameter is not None and parameter.shape == module._parameters[name].shape:
                    module._parameters[name] = parameter
        for name, value in vars(resized).items():
            if name in ("_modules", "config", "watch", "points"):
                self.__dict__[name] = value
        return self.get_input_embeddings()

    def _stacks(self) -> list[Stack]:
        return [module for module in self.modules() if isinstance(module, Stack)]

    def gradient_checkpointing_enable(self, **options: object) -> None:
        """In training, keep only the input of each block and compute the rest again for the gradients. The options of
        transformers have no effect."""
        for stack in self._stacks():
            stack.gradient_checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        """Undo `gradient_checkpointing_enable`."""
        for stack in self._stacks():
            stack.gradient_checkpointing = False

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether blocks are computed again for the gradients."""
        return any(stack.gradient_checkpointing for stack in self._stacks())

    def enable_input_require_grads(self) -> RemovableHandle:
        """Have the vectors of words require gradients, so that adapters behind frozen layers are trained."""

        def require(module: nn.Module, inputs: Any, output: Tensor) -> None:
            output.requires_grad_(True)

        return self.get_input_embeddings().register_forward_hook(require)

    def can_generate(self) -> bool:
        """Whether `generate` writes with this model."""
        return "past_key_values" in self.names and self.get_output_embeddings() is not None

    def prepare_inputs_for_generation(self, input_ids: Tensor, **options: object) -> dict[str, object]:
        """The arguments of the pass that reads a prompt; adapters change them."""
        return {"input_ids": input_ids, **options}

    def save_pretrained(self, save_directory: str | PathLike[str], **options: object) -> None:
        """`save(save_directory, format="hf")`; the options of transformers have no effect."""
        self.save(save_directory, format="hf")

    def save(self, folder: str | PathLike[str], format: str = "anyformer") -> None:
        """Write a folder."""
        raise NotImplementedError

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        """As of any module. A tied weight is a copy under its further names, since safetensors wants no two names for
        one memory; `keep_vars=True` gives the parameters themselves."""
        found: dict[str, Any] = super().state_dict(*args, **options)
        if options.get("keep_vars"):
            return found
        prefix, seen = str(options.get("prefix", "")), set[int]()
        for name, parameter in self.named_parameters(prefix.removesuffix("."), remove_duplicate=False):
            if id(parameter) in seen and name in found:
                found[name] = found[name].clone()
            seen.add(id(parameter))
        return found
