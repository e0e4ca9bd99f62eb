"""The audit: black-box checks of a config or a run for look-ahead bias and implausible results.

Checks of data are functions of a :class:`backtest.look_ahead.delivery.Delivery` and do no I/O. Checks of
code, models and results stand in ``pipelines.audit.checks`` and read a
:class:`pipelines.audit.subject.Subject`. Each is one line in :mod:`pipelines.audit.registry`, and returns a
:class:`backtest.look_ahead.finding.Result`.
"""
