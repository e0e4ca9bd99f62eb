"""One pass over many masks of the days against one forward pass per mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models.attention.encoder import DayEncoder, EncoderConfig

DAYS, FIRMS = 7, 5


@pytest.mark.parametrize("pooling", ["last", "cls"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True, "norm": "post", "activation": "relu"},
        {"positions": "rotary", "temperature": 0.5},
        {"positions": "relative"},
        {"positions": "alibi", "causal": True},
        {"kernel": "local", "radius": 2},
    ],
)
def test_all_masks_at_once_equal_one_forward_pass_each(pooling: str, options: dict[str, Any]) -> None:
    if pooling == "cls" and options.get("kernel") == "local":
        pytest.skip("the configuration is refused: the token would see the last days alone")
    torch.manual_seed(1)
    config = EncoderConfig(width=8, heads=2, layers=1, pooling=pooling, **options)  # type: ignore[arg-type]
    encoder = DayEncoder(config, n_channels=3, window=DAYS).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(std=0.6)
        x_MWC, keep_UW = torch.randn(FIRMS, DAYS, 3), torch.rand(12, DAYS) < 0.5
        keep_UW[0], keep_UW[1], keep_UW[2:4, -1] = True, False, torch.tensor([True, False])
        found_UMD = encoder.masked(x_MWC, keep_UW)
        assert found_UMD is not None
        expected = torch.stack([encoder(x_MWC, keep_W.expand(FIRMS, -1)) for keep_W in keep_UW])
    torch.testing.assert_close(found_UMD, expected, rtol=1e-4, atol=1e-5)
    assert expected.std(dim=0).mean() > 1e-2, "the masks matter"


@pytest.mark.parametrize("options", [{"layers": 2}, {"pooling": "mean"}, {"kernel": "linear"}])
def test_encoders_whose_days_see_each_other_have_no_short_cut(options: dict[str, Any]) -> None:
    encoder = DayEncoder(EncoderConfig(width=8, heads=2, **{"layers": 1, **options}), 3, DAYS).eval()
    assert encoder.masked(torch.randn(FIRMS, DAYS, 3), torch.ones(2, DAYS, dtype=torch.bool)) is None
