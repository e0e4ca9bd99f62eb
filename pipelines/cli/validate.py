"""``peerglass validate``: check a config, and print it with every default filled in."""

from __future__ import annotations

from pipelines.cli import ConfigArgument, SetOption


def validate(config: ConfigArgument, overrides: SetOption = None) -> None:
    """Check a config and the files that its source names, and print it with every default filled in.

    Files are read as an ingest would read them: missing ones, missing columns and files that were mostly
    misread end with exit code 3. The lake is neither read nor written.
    """
    from pipelines.config.load import load_config, to_yaml
    from pipelines.run.fetch import check_source

    checked = load_config(config, overrides or [])
    check_source(checked)
    print(to_yaml(checked), end="")
