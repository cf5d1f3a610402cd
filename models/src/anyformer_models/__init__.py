"""Small models for anyformer, one folder each: config, weights, tokenizer or processor, an example, and a card."""
