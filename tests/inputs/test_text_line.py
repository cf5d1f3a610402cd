"""Lines as columns: padded on the right as alone, and CTC against PyTorch's own reading of the formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import anyformer as af


def test_a_line_is_read_the_same_in_any_company() -> None:
    """Padded to a wider one's width, with noise beyond its end, as alone."""
    model = af.build("line-reader-tiny").eval().double()
    wide, narrow = torch.randn(1, 1, 16, 64).double(), torch.randn(1, 1, 16, 37).double()
    both, mask = torch.randn(2, 1, 16, 64).double(), torch.zeros(2, 16, 64)
    both[0], both[1, :, :, :37] = wide[0], narrow[0]
    mask[0], mask[1, :, :37] = 1, 1
    ids = torch.tensor([[0, 5, 6], [0, 7, 8]])
    with torch.no_grad():
        together = model(pixel_values=both, pixel_mask=mask, decoder_input_ids=ids).logits
        alone = model(pixel_values=narrow, decoder_input_ids=ids[1:]).logits
    torch.testing.assert_close(together[1:], alone, rtol=1e-9, atol=1e-9)
    written = model.generate(pixel_values=both, pixel_mask=mask, max_new_tokens=5, eos_token_id=None)
    assert written[1:].tolist() == model.generate(pixel_values=narrow, max_new_tokens=5, eos_token_id=None).tolist()


def test_the_second_opinion() -> None:
    """`ctc_loss` is the sum over all spreads of the letters over the columns, by brute force for two letters."""
    model = af.build("line-reader-tiny", ctc_weight=0.5).eval().double()
    pixels, labels = torch.randn(1, 1, 16, 16).double(), torch.tensor([[7, 9, 1, -100]])  # letters, end, nothing
    with torch.no_grad():
        out = model(pixel_values=pixels, labels=labels)
        states = out.encoder_last_hidden_state[0]
        chances = F.log_softmax(model.heads["spelling"].letters(states), dim=-1).exp()
    columns = len(chances)
    total = torch.zeros((), dtype=torch.float64)
    for path in torch.cartesian_prod(*[torch.arange(3)] * columns):  # nothing, 7, 9
        merged = [int(x) for i, x in enumerate(path) if i == 0 or x != path[i - 1]]
        if [x for x in merged if x] == [1, 2]:
            ids = torch.tensor([0, 7, 9])[path]
            total += chances[torch.arange(columns), ids].prod()
    assert float(out.ctc_loss) == pytest.approx(float(-total.log() / 2 * 0.5), rel=1e-5)


def test_mistakes() -> None:
    model = af.build("line-reader-tiny").eval()
    with pytest.raises(af.InputError, match="pixel_values has shape"):
        model(pixel_values=torch.randn(1, 1, 20, 64), decoder_input_ids=torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(af.ConfigError, match="height"):
        af.build("line-reader-tiny", widths=(4, 4, 4, 4, 4))
