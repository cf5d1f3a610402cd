"""The errors of anyformer: each is a subclass of Error, with a message that says what to do."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping

LIMIT = 400  # characters of a message
ENTRIES = (32, 24, 16, 12, 8, 5, 3)  # of a list that is too long: the most that fit
SEE_ALL = " Shortened; set ANYFORMER_ERRORS=full to see all."


class Error(Exception):
    """An error in the caller's input; the message says what was wrong and what to do.

    Messages quote files and input, so they are sanitized: no control characters, at most LIMIT characters.
    """

    def __init__(self, message: object = "", *more: object) -> None:
        super().__init__(presentable(str(message)), *more)


class ConfigError(Error):
    """A setting that does not exist, contradicts another, or is not supported."""


class FolderError(Error):
    """A model folder that cannot be read: no config, an unknown family, a missing or damaged file."""


class WeightsError(FolderError):
    """Tensors in the files that do not fit the model: missing, extra or of another shape."""


class StoppedError(Error):
    """Not a mistake: the work was stopped on request, and its state is saved."""


class SkippedError(Error):
    """Finished, but some inputs could not be used: each was reported, the others were processed. Exit code 3."""


class DataError(Error):
    """A file of rows that cannot be read: missing, empty, without a needed column, or in another encoding."""


class UnreadableError(DataError):
    """The file of a row (image, audio, clip) that is missing, damaged, or in another format."""


class InputError(Error):
    """A batch that the model cannot take: unknown names, wrong shapes, ids outside the vocabulary."""


# Names that other libraries have for a setting, and ours. The one place for them.
ALIASES: Mapping[str, tuple[str, ...]] = {
    # transformers and timm: models
    "model.activation": ("activation_function", "hidden_act", "hidden_activation"),
    "model.attention_dropout": ("attention_probs_dropout_prob", "attn_dropout", "attn_pdrop"),
    "model.d_decoder_hidden": ("decoder_ffn_dim",),
    "model.d_head": ("attention_head_dim", "head_dim", "head_size"),
    "model.d_hidden": (
        "d_ff",
        "d_inner",
        "dim_feedforward",
        "encoder_ffn_dim",
        "ffn_dim",
        "intermediate_size",
        "n_inner",
    ),
    "model.d_model": ("dim", "embed_dim", "embedding_dim", "hidden_dim", "hidden_size", "n_embd"),
    "model.drop_path": ("drop_path_rate", "stochastic_depth"),
    "model.dropout": ("dropout_prob", "dropout_rate", "hidden_dropout_prob", "resid_pdrop"),
    "model.init_std": ("initializer_range",),
    "model.max_length": ("block_size", "max_position_embeddings", "n_ctx", "n_positions"),
    "model.n_channels": ("in_channels", "in_chans", "num_channels"),
    "model.n_decoder_heads": ("decoder_attention_heads",),
    "model.n_decoder_layers": ("decoder_layers", "num_decoder_layers"),
    "model.n_heads": ("encoder_attention_heads", "n_head", "num_attention_heads", "num_heads"),
    "model.n_kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "model.n_labels": ("n_classes", "num_classes", "num_labels"),
    "model.n_layers": ("depth", "encoder_layers", "n_layer", "num_hidden_layers", "num_layers"),
    "model.norm_eps": ("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps"),
    "model.tied": ("tie_embeddings", "tie_weights", "tie_word_embeddings"),
    # transformers' Trainer, Lightning, timm: training
    "data.image_size": ("img_size", "imgsz", "input_size"),
    "data.max_length": ("max_len", "max_seq_len", "max_seq_length", "max_source_length"),
    "data.validation_split": ("held_out", "test_size", "val_size", "val_split", "validation_fraction"),
    "train.batch_size": ("batch", "bs", "per_device_batch_size", "per_device_train_batch_size", "train_batch_size"),
    "train.betas": ("adam_beta1", "adam_beta2"),
    "train.compile": ("torch_compile",),
    "train.eps": ("adam_eps", "adam_epsilon"),
    "train.epochs": ("max_epochs", "n_epochs", "num_epochs", "num_train_epochs"),
    "train.eval_every": ("eval_interval", "eval_steps", "val_check_interval"),
    "train.gradient_accumulation": ("accumulate_grad_batches", "grad_accum", "gradient_accumulation_steps"),
    "train.keep_checkpoints": ("save_total_limit",),
    "train.label_smoothing": ("label_smoothing_factor",),
    "train.log_every": ("log_interval", "logging_steps"),
    "train.lora": ("lora_r", "lora_rank"),
    "train.lora_targets": ("lora_target_modules", "target_modules"),
    "train.lr": ("base_lr", "learning_rate", "lr0", "max_lr"),
    "train.max_grad_norm": ("clip_grad", "clip_grad_norm", "grad_clip", "gradient_clip_val", "gradient_clipping"),
    "train.optimizer": ("opt", "optim"),
    "train.patience": ("early_stopping", "early_stopping_patience"),
    "train.precision": ("amp", "bf16", "fp16", "mixed_precision"),
    "train.save_every": ("save_interval", "save_steps"),
    "train.schedule": ("cos_lr", "lr_schedule", "lr_scheduler", "lr_scheduler_type", "scheduler"),
    "train.seed": ("random_seed", "manual_seed"),
    "train.steps": ("iterations", "max_iters", "max_steps", "num_steps", "num_train_steps"),
    "train.warmup_steps": ("num_warmup_steps", "warmup", "warmup_epochs", "warmup_iters", "warmup_ratio"),
    # arguments of the commands and of af.train
    "data": ("data_dir", "data_path", "dataset", "dataset_name", "train_data", "train_file"),
    "out": ("output", "output_dir", "save_dir"),
    "recipe": ("arch", "architecture", "base_model", "model_name", "model_name_or_path"),
    "resume": ("resume_from_checkpoint",),
    "valid": ("dev_data", "eval_data", "val_data", "validation_data", "validation_file"),
    # generate
    "max_new_tokens": ("max_gen_tokens", "max_tokens", "new_tokens"),
    "num_beams": ("beam_size", "beam_width", "beams", "n_beams"),
    "num_return_sequences": ("best_of", "n", "num_samples"),
    "stop_strings": ("stop_sequences",),
    "texts": ("candidate_labels",),
    "top": ("top_n",),
}
TRAINING = ("train.", "data.")  # sections that no model has
OURS = {theirs: ours for ours, names in ALIASES.items() for theirs in names}


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a name that is not known.  nearest("n_layer", ["n_layers"]) -> ' Did you mean "n_layers"?'

    Known names may have sections ("train.lr"); the name itself need not. Another library's name for a setting counts.
    """
    known, end = list(known), name[:100].rpartition(".")[2]
    ours = OURS.get(end.lower().replace("-", "_"), "")
    found = next((one for one in (ours, _end(ours)) if one in known), None) or _similar(name[:100], known)
    return f' Did you mean "{found}"?' if found else ""


def training_setting(name: str) -> str:
    """A hint for another library's name of a setting of training, where a setting of a model is wanted."""
    ours = OURS.get(name.lower().replace("-", "_"), "")
    ours = ours or next((key for key in ALIASES if _end(key) == name and key.startswith(TRAINING)), "")
    return f' It is the setting "{ours}" of af.train, not of a model.' if ours.startswith(TRAINING) else ""


def _similar(name: str, known: list[str]) -> str | None:
    """The known name that is most like it: as a whole, or, where it has no section, in its last part."""
    ends = {} if "." in name else {_end(whole): whole for whole in reversed(known)}
    named = {**ends, **{whole: whole for whole in known}}
    found = difflib.get_close_matches(name, list(named), n=1)
    if not found and "." in name:
        return _similar(_end(name), known)
    return named[found[0]] if found else None


def _end(name: str) -> str:
    return name.rpartition(".")[2]


def presentable(text: str) -> str:
    """A message that is safe to print: on one line, without control characters, at most LIMIT characters long."""
    text = "".join(letter if letter.isprintable() else _visible(letter) for letter in text)
    if len(text) <= LIMIT or os.environ.get("ANYFORMER_ERRORS") == "full":
        return text
    text, room = text.replace(SEE_ALL, ""), LIMIT - len(SEE_ALL)
    few = next((cut for n in ENTRIES if len(cut := _cut_lists(text, n)) <= room), _cut_lists(text, ENTRIES[-1]))
    if len(few) > room:  # what was wrong stands at the beginning, what to do at the end
        few = f"{few[: room * 2 // 3]} … {few[-(room // 3 - 3) :]}"
    return few + SEE_ALL


def _visible(letter: str) -> str:
    return " " if letter.isspace() else letter.encode("unicode_escape").decode()


def _cut_lists(text: str, entries: int) -> str:
    """Long words are cut in the middle; of a list with commas the first entries stay, and the last."""
    text = re.sub(r"\S{101,}", lambda word: f"{word[0][:60]}…{word[0][-30:]}", text)
    entry = r"[^,;]{1,100}[,;] "
    return re.sub(rf"((?:{entry}){{{entries}}})((?:{entry}){{2,}})", _few, text)


def _few(found: re.Match[str]) -> str:
    return f"{found[1]}… {len(re.findall('[,;] ', found[2])):,} more …, "
