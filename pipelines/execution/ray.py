"""The engine that computes tasks on a Ray cluster: this machine, or many.

The shared object is put once into Ray's object store. Each machine fetches it once, and its workers read it
without a copy. Workers need no disk in common with the parent: everything goes through Ray. Repetition is
left to `pipelines.execution.protocol.run_jobs`, so that there is one rule for all engines.
"""

import logging
import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self

from pipelines import plugins
from pipelines.config.sections import EngineConfig
from pipelines.errors import ConfigError, one_line
from pipelines.execution.protocol import Hear, Item, Report, Result, Shared, Ticket, Work, attempt, lost

if TYPE_CHECKING:
    import ray

_POLL_SECONDS = 0.5  # between two looks at the news
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent to anyone
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a warning about tasks without a GPU
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "0",  # a Ray that is started here has the command's priority, as the pool
}


Needs = dict[str, float]  # what Ray reserves for a task: ``num_cpus``, ``num_gpus``, ``memory``


class RayEngine(Generic[Shared, Item, Result]):
    """Computes tasks on the cluster of the config, or on a local one that ends with the command."""

    threads = 1

    def __init__(self, config: EngineConfig, work: Work[Shared, Item, Result], workers: int) -> None:
        self.workers = workers
        self._config, self._work = config, work
        self._under_way: dict[ray.ObjectRef[Any], Ticket] = {}

    def __enter__(self) -> Self:
        """Connect, place the shared object, and check that a machine is large enough for a task."""
        self._needs = _needs(self._config, self._work)
        _require_ray()
        try:
            _connect(self._config, self.workers)
            _require_room(self._needs)
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        import ray

        work, value = self._work, self._work.shared
        if work.portable is not None and self._config.address is not None:  # other machines have other disks
            value = work.portable(value)
        self._shared = ray.put((work.call, value, work.code()))
        remote: Any = ray.remote  # Ray adds methods of its own
        self._mailbox = remote(num_cpus=0, max_restarts=-1)(_Mailbox).remote()
        self._attempt = remote(**self._needs, max_retries=0)(_attempt)  # `run_jobs` repeats what is lost

    def __exit__(self, *_: object) -> None:
        import ray

        self._under_way.clear()
        ray.shutdown()  # ends the tasks of this command, and the cluster if it was started here

    def has_room(self, device: str, under_way: Collection[Ticket]) -> bool:
        """Whether fewer tasks than ``execution.workers`` are under way; Ray knows the devices."""
        return len(under_way) < self.workers

    def submit(self, ticket: Ticket, item: Item) -> None:
        """Hand the attempt to Ray, which places it where there is room, on a GPU if the task needs one."""
        without_gpu = self._needs["num_gpus"] and ticket.device == "cpu"
        remote = self._attempt.options(num_gpus=0) if without_gpu else self._attempt
        reference = remote.remote(self._shared, item, ticket, self._mailbox, self._work.code)
        self._under_way[reference] = ticket

    def wait(self, hear: Hear) -> Sequence[Report[Result]]:
        """Wait for reports; a worker or a machine that is gone is lost."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        while self._under_way:
            ready, _ = ray.wait(list(self._under_way), num_returns=1, timeout=_POLL_SECONDS)
            self._pass_on(hear)
            reports: list[Report[Result]] = []
            for reference in ready:
                ticket = self._under_way.pop(reference)
                try:
                    reports.append(ray.get(reference))
                except RayTaskError as error:  # errors of a task are reports: this one did not start
                    reports.append(_not_started(ticket, error))
                except RayError as error:
                    reports.append(lost(ticket, f"{type(error).__name__}: {one_line(error)}"))
            if reports:
                return reports
        return []

    def _pass_on(self, hear: Hear) -> None:
        """Pass on the news. Those in a mailbox that is gone are lost, which news may be."""
        import ray
        from ray.exceptions import RayError

        try:
            news = ray.get(self._mailbox.take.remote(), timeout=10)
        except RayError:
            return
        for ticket, content in news:
            hear(ticket, content)


class _Mailbox:
    """An actor that keeps the news of workers until the parent takes them."""

    def __init__(self) -> None:
        self._news: list[tuple[Ticket, Any]] = []

    def put(self, ticket: Ticket, content: Any) -> None:  # noqa: ANN401 (of any kind)
        """Add news."""
        self._news.append((ticket, content))

    def take(self) -> list[tuple[Ticket, Any]]:
        """Return the news since the last call, oldest first."""
        news, self._news = self._news, []
        return news


def _attempt(shared: Any, item: Any, ticket: Ticket, mailbox: Any, code: Any) -> Report[Any]:  # noqa: ANN401
    """Compute an attempt in a worker of Ray, if the worker runs the same code as the parent."""
    call, value, digest = shared
    if code() != digest:
        error = ConfigError(
            f"The machine {os.uname().nodename} of the cluster has other code of Peerglass than this one, or "
            "other versions of its libraries; install the same on all machines."
        )
        return Report(ticket, f"attempt {ticket.attempt}: {error}\n", error=error)
    return attempt(call, value, item, ticket, lambda news: mailbox.put.remote(ticket, news))


def _needs(config: EngineConfig, work: Work[Any, Any, Any]) -> Needs:
    on_gpu = work.device != "cpu"
    if on_gpu != (config.gpus_per_task > 0):
        cure = "set execution.gpus_per_task" if on_gpu else "set device: cuda, or gpus_per_task: 0"
        raise ConfigError(
            f"The models are trained on the device {work.device}, and execution.gpus_per_task is "
            f"{config.gpus_per_task:g}; {cure}."
        )
    return {"num_cpus": 1.0, "num_gpus": config.gpus_per_task, "memory": work.memory}


def _require_ray() -> None:
    """Import Ray quietly, and require that this process is not connected with a cluster."""
    os.environ.update({name: os.environ.get(name, value) for name, value in _ENVIRONMENT.items()})
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "execution.engine is ray, which is not installed; install the extra with pip install "
            "'.[cluster]' in the folder of Peerglass, or choose engine pool."
        ) from None
    if ray.is_initialized():
        raise ConfigError("This process is connected with a Ray cluster already; call ray.shutdown() first.")


def _connect(config: EngineConfig, workers: int) -> None:
    import ray

    local: dict[str, Any] = {} if config.address else {"num_cpus": workers, "include_dashboard": False}
    if names := plugins.loaded():  # before objects of their classes arrive
        local["runtime_env"] = {"worker_process_setup_hook": lambda: plugins.load_those_there(names)}
    try:
        ray.init(
            address=config.address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=True,
            **local,
        )
        # Ray prints notices of lost workers on stdout, which is for results; `lost` tells the parent
        vars(ray._private.worker)["print_to_stdstream"] = lambda *_, **__: None
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise ConfigError(
            f"No Ray cluster answers at execution.address {config.address or 'local'} "
            f"({one_line(error)}); start one with 'ray start --head', or leave out the address."
        ) from None


def _require_room(needs: Needs) -> None:
    """Refuse a task that no machine could ever hold, for which Ray would wait for ever."""
    import ray

    wanted = dict(zip(("CPU", "GPU", "memory"), needs.values(), strict=True))
    nodes = ray.nodes()  # type: ignore[no-untyped-call]  # as Ray ships it
    machines = [node["Resources"] for node in nodes if node["Alive"]]
    if any(all(node.get(name, 0.0) >= amount for name, amount in wanted.items()) for node in machines):
        return
    largest: dict[str, float] = max(machines, key=lambda node: node.get("memory", 0.0), default={})
    raise ConfigError(
        f"A task needs {needs['num_cpus']:g} core, {needs['num_gpus']:g} GPU(s) and about "
        f"{needs['memory'] / 2**30:.1f} GiB of memory, and no machine of the cluster offers that; the one "
        f"with the most memory has {largest.get('CPU', 0):g} cores, {largest.get('GPU', 0):g} GPU(s) and "
        f"{largest.get('memory', 0) / 2**30:.1f} GiB. Add a machine, or use fewer firms or features."
    )


def _not_started(ticket: Ticket, error: Exception) -> Report[Any]:
    cause = next((line for line in reversed(str(error).splitlines()) if "Error" in line), str(error))
    sentence = (
        f"A worker of the Ray cluster cannot load the task ({one_line(cause)}); install the same version of "
        "Peerglass and of its libraries on all machines."
    )
    log = f"attempt {ticket.attempt} did not start:\n{error}\n"
    return Report(ticket, log, error=ConfigError(sentence))
