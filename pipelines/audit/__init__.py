"""The audit: black-box checks of a config or a run for look-ahead bias and implausible results.

Each check is one file and one line in :mod:`pipelines.audit.registry`. It reads a
:class:`pipelines.audit.subject.Subject` and returns a :class:`pipelines.audit.result.Result`.
"""
