"""What transformers' own tests ask that anyformer does not do, with the reason: those tests are reported as skipped."""

from __future__ import annotations

BARE = "step 12: the bare models of these families are not loaded yet"
HEADS = "step 12: this head is not loaded yet"
TRACED = "step 11b: compiling and exporting by PyTorch's own tools"

# Classes that anyformer answers for; what else a test calls must be in CLASSES.
ANSWERED = frozenset(
    "GPT2LMHeadModel LlamaForCausalLM T5ForConditionalGeneration ViTModel ViTForImageClassification BertModel"
    " BertForMaskedLM BertForSequenceClassification BertForTokenClassification BertForQuestionAnswering"
    " BertForMultipleChoice BertForPreTraining".split()
)
# Classes that are taken out of the tests that go through all classes of a family, and skip the tests that name them.
CLASSES = {
    "GPT2Model": BARE,
    "LlamaModel": BARE,
    "T5Model": BARE,
    "T5EncoderModel": BARE,
    **dict.fromkeys(("GPT2DoubleHeadsModel", "GPT2ForQuestionAnswering", "GPT2ForSequenceClassification"), HEADS),
    **dict.fromkeys(("GPT2ForTokenClassification", "LlamaForSequenceClassification"), HEADS),
    **dict.fromkeys(("LlamaForQuestionAnswering", "LlamaForTokenClassification"), HEADS),
    **dict.fromkeys(("T5ForSequenceClassification", "T5ForTokenClassification", "T5ForQuestionAnswering"), HEADS),
    "T5Stack": "step 12: one side of a model alone",
    **dict.fromkeys(("BertForNextSentencePrediction", "BertLMHeadModel", "ViTForMaskedImageModeling"), HEADS),
}
# Options that anyformer refuses.
OPTIONS: dict[str, dict[str, str]] = {
    "call": {},
    "generate": {
        "past_key_values": "step 11b: caches made by transformers",
        "custom_generate": "step 11b: code of the caller's own",
    },
}
# What neither library is asked, so that both are asked the same.
WITHOUT: dict[str, dict[str, str]] = {
    "call": {"bool_masked_pos": "step 12: the head that guesses masked patches is not loaded yet"},
    "generate": {},
}
# Fields of an answer that stay transformers' own; all others of the same answer are ours.
FIELDS: dict[str, dict[str, str]] = {
    "call": {},
    "generate": {"past_key_values": "decision 57: generate does not return its cache"},
}
OF_LAYERS = (  # of a `generate` that we were not asked them of
    *("attentions", "hidden_states", "encoder_attentions", "encoder_hidden_states"),
    *("decoder_attentions", "decoder_hidden_states", "cross_attentions"),
)
LAYERS = ("output_hidden_states", "output_attentions")  # left to transformers without its cache, or with a draft
BOTH = "decision 57: one prompt as ids and as vectors is refused"
# Tests, as "family: name" with * for anything, that are not about answers we could give.
TESTS: dict[str, str] = {
    "*: test_fsdp*": "several processes, of transformers' own code alone",
    "*: test_tp_*": "several processes, of transformers' own code alone",
    "*: test_pipeline_*": "transformers' pipelines with files from the network",
    "*: test_training_gradient_checkpointing*": "counts the calls of transformers' own layers",
    "*: test_retain_grad_hidden_states_attentions": "hidden states are copies with zeros at the padding",
    "bert: test_generation_tester_mixin_inheritance": "about classes, of which some are left out here",
    "t5: *_fp16_*": "in float16 transformers keeps some of T5 in float32; here a model has one type",
    "t5: test_generate_without_input_ids": "an encoder with nothing to read is an error here",
    "*: test_generate_compil*": TRACED,
    "*: test_static_cache_*": "step 11b: other caches",
    "*export*": TRACED,
}
# Fields that transformers' tests write into the config of every family, whether or not it reads them.
IGNORED = (
    "batch_norm_eps",
    "layer_norm_eps",
    "norm_eps",
    "norm_epsilon",
    "rms_norm_eps",
    "layer_norm_epsilon",
    "is_decoder",
    "num_choices",
)
KNOWN = {"gpt2": ("is_decoder",)}  # those that our table of a family knows all the same
