"""The order of the sections in a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipelines.pages.contents.report import ReportData
from pipelines.pages.sections.book.capacity import capacity_blocks
from pipelines.pages.sections.book.costs import cost_blocks
from pipelines.pages.sections.book.delistings import delisting_blocks
from pipelines.pages.sections.book.drawdowns import drawdown_blocks
from pipelines.pages.sections.book.equity import equity_blocks
from pipelines.pages.sections.book.figures import figure_blocks
from pipelines.pages.sections.book.holdings import holding_blocks
from pipelines.pages.sections.book.risk import contribution_blocks, exposure_blocks, factor_blocks
from pipelines.pages.sections.book.rolling import monthly_blocks, rolling_blocks
from pipelines.pages.sections.model.attribution import attribution_blocks
from pipelines.pages.sections.model.models import model_blocks
from pipelines.pages.sections.model.training import fold_blocks, learning_blocks
from pipelines.pages.sections.model.truth import truth_blocks
from pipelines.pages.sections.provenance import config_blocks, provenance_blocks
from pipelines.pages.sections.section import Section
from pipelines.pages.sections.signal import quantile_blocks, signal_blocks
from pipelines.pages.sections.signal_file import row_blocks
from pipelines.pages.sections.trials import trial_blocks
from pipelines.pages.theme import Style


def sections(data: ReportData, styles: Mapping[str, Style], best: str | None) -> Iterator[Section]:
    """Build the sections for which there is data: first what the book did, last where it comes from.

    Parameters
    ----------
    data
        The results of the run.
    styles
        Model -> style.
    best
        The chosen model, highlighted in tables.

    Yields
    ------
    Section
        Only sections that have at least one block.
    """
    for anchor, title, blocks in (
        ("figures", "Key figures", figure_blocks(data, styles, best)),
        ("books", "Equity and drawdown", equity_blocks(data, styles, best)),
        ("costs", "Costs, turnover and fills", cost_blocks(data, styles, best)),
        ("rolling", "Rolling measures", rolling_blocks(data, styles, best)),
        ("months", "Returns by month", monthly_blocks(data, best)),
        ("signal", "Information coefficient", signal_blocks(data, styles, best)),
        ("quantiles", "Returns by quantile", quantile_blocks(data, styles, best)),
        ("exposures", "Exposures", exposure_blocks(data, best)),
        ("factors", "Factor regression", factor_blocks(data, styles, best)),
        ("contributions", "Contributions", contribution_blocks(data, best)),
        ("capacity", "Capacity", capacity_blocks(data, styles, best)),
        ("trials", "Trials and overfitting", trial_blocks(data, styles, best)),
        ("drawdowns", "Worst times", drawdown_blocks(data, best)),
        ("holdings", "Holdings and trades", holding_blocks(data, best)),
        ("models", "Models" if data.header.trained else "Signals", model_blocks(data, styles, best)),
        ("file", "Rows of the file", row_blocks(data.file)),
        ("delistings", "Delistings with unknown return", delisting_blocks(data.endings, styles)),
        ("folds", "Folds", fold_blocks(data)),
        ("learning", "Learning curves", learning_blocks(data, styles)),
        ("truth", "Simulated truth", truth_blocks(data, styles)),
        ("attribution", "Attribution", attribution_blocks(data)),
        ("provenance", "Provenance", provenance_blocks(data.header)),
        ("config", "Configuration", config_blocks(data.header)),
    ):
        if filled := tuple(blocks):
            yield Section(anchor, title, filled)
