"""A new tracking store for commands that run in processes of their own."""

from __future__ import annotations

from pathlib import Path

from pipelines.tracking import store


def new_store(folder: Path) -> None:
    """Put the store ``mlflow.db`` into a folder, as the first command there would create it.

    In this process it is a copy of the session's first one (the fixture ``migrated_stores``). A command that
    runs in another process would spend seconds on MLflow's migrations.
    """
    store._create_database(str(folder / "mlflow.db"))
    assert (folder / "mlflow.db").is_file()
