"""lm-evaluation-harness (`pip install lm-eval`) on a model folder; scores and texts equal those of its own "hf" model.

import lm_eval, anyformer.integrations.lm_eval                            # registers "anyformer"
lm_eval.simple_evaluate("anyformer", model_args="pretrained=FOLDER,batch_size=16", tasks=["hellaswag"])
"""

from __future__ import annotations

import json
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from anyformer.checkpoints.folder import load
from anyformer.errors import InputError
from anyformer.generation.requests import decoding_stage
from anyformer.generation.scoring import pad_rows
from anyformer.model import Model
from anyformer.tokenizers.tokenizer import Tokenizer

ROWS = 16  # default number of rows at once
LENGTH = 2048  # of models with any number of positions, as in the harness


@register_model("anyformer")
class HarnessLM(TemplateLM):  # type: ignore[misc]  # the harness is untyped
    """A model folder, or a model beside its tokenizer, as the harness's LM. `batch_size` rows run at once."""

    def __init__(
        self,
        pretrained: str | Model,
        tokenizer: str | Tokenizer | None = None,
        batch_size: int | str = ROWS,
        max_batch_size: int | None = None,
        device: str | None = None,
        max_length: int | None = None,
    ) -> None:
        super().__init__()
        given = pretrained if tokenizer is None else tokenizer
        if isinstance(given, Model):
            raise InputError("A model needs its tokenizer beside it; pass tokenizer, or the model's folder.")
        self.model = load(pretrained, device=device or "auto") if isinstance(pretrained, str) else pretrained
        self.tokenizer: Any = Tokenizer.load(given) if isinstance(given, str) else given
        self.rows = ROWS if batch_size == "auto" else int(batch_size)
        stage = decoding_stage(self.model)
        self.backend = "causal" if stage.attends is None else "seq2seq"
        self.max_length = max_length or stage.limit or LENGTH

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.end_id)

    @property
    def prefix_token_id(self) -> int:
        begin = self.tokenizer.names.get("bos_token")
        return self.eot_token_id if begin is None else int(self.tokenizer.engine.token_to_id(begin))

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **more: Any) -> list[int]:
        if add_special_tokens is None:
            prefix = self.tokenizer.decode([self.prefix_token_id], special=True)
            add_special_tokens = not string.startswith(prefix)
        return list(self.tokenizer.encode(string, special=add_special_tokens))

    def _loglikelihood_tokens(self, requests: list[Any], **more: Any) -> list[tuple[float, bool]]:
        """Score (texts, context ids, continuation ids); contexts that are too long lose their first tokens."""
        found: dict[int, tuple[float, bool]] = {}
        causal, most = self.backend == "causal", self.max_length + 1  # the last token is not read
        contexts = [ids[-(most - len(answer)) if causal else -self.max_length :] for _, ids, answer in requests]
        sizes = [(len(ids), len(row[2]) if causal else 0) for ids, row in zip(contexts, requests, strict=True)]
        for some in self._batches(sizes):
            answers = [requests[i][2] for i in some]
            ids, mask = pad_rows([contexts[i] for i in some], self.model.device)
            scores = self.model.score(ids, attention_mask=mask.long(), continuations=[[row] for row in answers])
            found |= zip(some, zip(scores.totals.tolist(), scores.greedy.tolist(), strict=True), strict=True)
            for i in some:
                if requests[i][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[i][0], found[i])
        return [found[i] for i in range(len(requests))]

    def _batches(self, sizes: list[tuple[int, int]]) -> list[list[int]]:
        """Group rows, given as the lengths of context and continuation, so that they fit the positions side by side."""
        batches: list[list[int]] = [[]]
        for i in sorted(range(len(sizes)), key=lambda i: -sum(sizes[i])):
            longest = [max(column) for column in zip(*(sizes[n] for n in (*batches[-1], i)), strict=True)]
            if len(batches[-1]) == self.rows or (batches[-1] and sum(longest) > self.max_length + 1):
                batches.append([])
            batches[-1].append(i)
        return batches if sizes else []

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of whole texts, in windows that do not overlap."""
        totals = []
        for request in requests:
            ids = self.tok_encode(request.args[0])
            rolled = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1)
            windows = [(None, *make_disjoint_window(window)) for window in rolled]
            totals.append(sum(score for score, _ in self._loglikelihood_tokens(windows)))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, totals[-1])
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue texts up to a stop string, by continuous batching."""
        found: dict[int, str] = {}
        alike: dict[str, list[int]] = {}  # requests with the same options
        for i, request in enumerate(requests):
            alike.setdefault(json.dumps(request.args[1], sort_keys=True, default=str), []).append(i)
        for some in alike.values():
            options: dict[str, Any] = dict(normalize_gen_kwargs(requests[some[0]].args[1]))
            ends = self.tokenizer.decode([self.eot_token_id], special=True)
            stops = handle_stop_sequences(options.pop("until", None), eos=ends)
            new, warm = options.pop("max_gen_toks"), options.pop("do_sample", False)
            options = {**options, "do_sample": True} if warm else {}
            room = self.max_length - new if self.backend == "causal" else self.max_length
            prompts = [self.tok_encode(requests[i].args[0])[-room:] for i in some]
            made = self.model.generate_many(
                prompts, self.rows, max_new_tokens=new, stop_strings=stops, tokenizer=self.tokenizer, **options
            )
            for n, ids in made:
                answer = ids[len(prompts[n]) if self.backend == "causal" else 1 :].tolist()
                text = postprocess_generated_text(self.tokenizer.target.decode(answer), stops, None)
                found[some[n]] = text
                self.cache_hook.add_partial("generate_until", requests[some[n]].args, text)
        return [found[i] for i in range(len(requests))]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return str(self.tokenizer.chat(chat_history, add_generation_prompt=add_generation_prompt))
