"""The section ``execution``: where the tasks of a command are computed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pipelines.settings import Section


class ExecutionConfig(Section):
    """Where the tasks of training, tuning and attribution are computed. No setting changes a result."""

    engine: Literal["serial", "pool", "ray"] = "pool"
    """``serial`` computes one task after the other in the command's own process; ``pool`` uses processes of
    this machine; ``ray`` uses a Ray cluster (extra ``cluster``)."""
    workers: int = Field(default=2, ge=1)
    """Maximum number of tasks that are computed at once, over all machines. ``serial`` computes one."""
    address: str | None = None
    """Ray: address of a running cluster, as ``HOST:PORT``, or ``auto`` on one of its machines. Null: Ray is
    started on this machine and ends with the command."""
    gpus_per_task: float = Field(default=0.0, ge=0)
    """Ray: number of GPUs that every task reserves. With a fraction, tasks share a GPU."""

    @model_validator(mode="after")
    def _check_engine(self) -> ExecutionConfig:
        if self.engine != "ray" and (self.address is not None or self.gpus_per_task):
            given = "address" if self.address is not None else "gpus_per_task"
            raise ValueError(f"{given} is a setting of engine ray, and engine is {self.engine}; remove one")
        if self.address is not None and "://" in self.address:
            raise ValueError(
                f"address is {self.address!r}; Ray's client protocol is not supported: run the command on a "
                "machine of the cluster with address auto, or give HOST:PORT of its head"
            )
        if self.gpus_per_task > 1 and not self.gpus_per_task.is_integer():
            raise ValueError(f"gpus_per_task is {self.gpus_per_task}; above 1 it must be a whole number")
        return self
