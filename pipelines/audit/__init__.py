"""The audit: black-box checks of a config or a run for look-ahead and for results that cannot be believed.

Each check is one file and one line in :mod:`pipelines.audit.registry`; it reads a
:class:`pipelines.audit.subject.Subject` and answers with a :class:`pipelines.audit.result.Result`.
"""
