"""``peerglass track``: upkeep of the tracking store."""

from __future__ import annotations

import typer

from pipelines.cli import ConfigArgument, SetOption

app = typer.Typer(name="track", help="Send records to the tracking store.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `sync` a command of its own; a group with one command would lose its name."""


@app.command()
def sync(config: ConfigArgument, overrides: SetOption = None) -> None:
    """Send what the tracking store does not have: nights that wait, model versions and their aliases.

    A night whose tracking server is gone ends with exit code 6 and leaves its record under
    `<output>/nights/<config>/spool`. The next night sends it, and so does this command. Nothing is sent
    twice. Exit code 6 if the server is still gone.
    """
    from pipelines.config.load import load_config
    from pipelines.dataset.tables import open_lake
    from pipelines.nightly.spool import describe_synced
    from pipelines.nightly.spool import sync as send
    from pipelines.progress import Progress

    settings, progress = load_config(config, overrides or []), Progress()
    typer.echo(describe_synced(send(settings, open_lake(settings, progress.note), progress), settings))
