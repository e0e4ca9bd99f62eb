"""``peerglass notebook``: open the notebooks that come with Peerglass."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli import RUNS_FOLDER, OutputOption, day_option
from pipelines.commands.notebooks import copy_notebooks, find_notebook, open_lab, write_page
from pipelines.errors import ConfigError


def notebook(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Notebook, or the beginning of its name, such as 02. Default: all of them."
        ),
    ] = None,
    *,
    run: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Run that 02 and 03 review. Default: a small simulated market."),
    ] = None,
    date: Annotated[
        dt.datetime | None,
        day_option("Date that 02 reviews: the last explained one up to it. Default: the newest."),
    ] = None,
    ticker: Annotated[
        str | None, typer.Option(help="Firm that 02 reviews. Default: the firm whose peers changed most.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Run the notebook without JupyterLab and write it as one HTML file."
        ),
    ] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Copy the notebooks and print their paths.")] = False,
    output: OutputOption = RUNS_FOLDER,
) -> None:
    """Open notebooks in JupyterLab, with the Python of this installation.

    - `01_first_run`: from a config to a backtest and an explained forecast
    - `02_peer_network_review`: a firm's peers on a date, and what changed since last month
    - `03_attention_is_not_explanation`: attention against Shapley values on a market whose truth is known
    - `04_your_own_data`: from a vendor's file to a measured model
    - `05_signal_research`: a signal from the idea to the deflated Sharpe ratio

    The notebooks are copied into the folder `notebooks` here; one that is there already is kept as it is.
    They write below `data`, and need JupyterLab: `pip install 'jupyterlab>=4.3'`. With `--html` no server is
    started; the file needs no network, and its menus still work.

    Example: `peerglass notebook 02 --run latest --html review.html`
    """
    if copy and html is not None:
        raise ConfigError("--copy only copies the notebooks, and --html runs one; give one of the two.")
    chosen = None if name is None else find_notebook(name)
    if html is not None and chosen is None:
        raise ConfigError(
            "--html writes one notebook; name it, for example: peerglass notebook 02 --html FILE."
        )
    variables = _variables(run, date, ticker, output)
    copies = copy_notebooks(Path.cwd() / "notebooks", chosen)
    if copy:
        for path in copies:
            print(path)
        return
    if html is not None:
        print(write_page(copies[0], html, variables))
        return
    open_lab(copies[0] if chosen else copies[0].parent, variables)


def _variables(run: str | None, date: dt.datetime | None, ticker: str | None, output: Path) -> dict[str, str]:
    """The parameters of the notebooks, as environment variables of the kernel."""
    variables = {}
    if run is not None:
        from pipelines.run.record import open_run

        variables["PEERGLASS_RUN"] = str(open_run(run, output).folder.resolve())
    if date is not None:
        variables["PEERGLASS_DATE"] = str(date.date())
    if ticker is not None:
        variables["PEERGLASS_TICKER"] = ticker
    return variables
