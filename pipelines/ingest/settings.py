"""Settings of the quality rules: the config's section ``quality``."""

import datetime as dt
from typing import Final, Literal, Self, get_args

from pydantic import model_validator

from pipelines.settings import Section

Action = Literal["reject", "flag", "off"]
# rules that find a row to be wrong, and not only unusual
WrongRule = Literal["spike_that_reverts", "split_without_return", "currency_jump", "dividend_above_price"]


class CalendarOverrides(Section):
    """Days on which the exchange calendar is wrong.

    A calendar is published in advance. It does not know a closure for a typhoon or a day of mourning, nor the
    sessions after its own end.
    """

    closures: tuple[dt.date, ...] = ()
    """Days without a session."""
    sessions: tuple[dt.date, ...] = ()
    """Additional sessions. Those after the end of the calendar extend it; days between them are closed."""

    @model_validator(mode="after")
    def _check_days(self) -> Self:
        both = sorted({*self.closures} & {*self.sessions})
        if both:
            raise ValueError(f"closures and sessions both name {both[0]}; remove it from one of them")
        return self


AS_PUBLISHED: Final = CalendarOverrides()  # no overrides


class QualityConfig(Section):
    """What happens to a price row that breaks a rule of :mod:`pipelines.ingest.rules`.

    ``flag`` stores the row and lists it as suspicious. ``reject`` moves it to the quarantine, from the next
    ingest on; a row that is already stored stays there, unless its date is no session. ``off`` disables the
    rule.
    """

    spike_that_reverts: Action = "flag"
    """The close jumps by a factor of 1.5 or more, and by more than 0.02, and returns at the next session."""
    stale_run: Action = "flag"
    """The bar repeats the bar before it for the tenth session in a row, or longer."""
    split_without_return: Action = "flag"
    """A split is recorded, but the price does not show it: the prices are probably adjusted already."""
    return_without_split: Action = "flag"
    """The price moves as in a split, but no split is recorded."""
    closed_session: Action = "reject"
    """The exchange was closed on the date of the row, by ``calendar`` or by the firm's recorded exchange."""
    sparse_date: Action = "reject"
    """Without a calendar: the date has a row for less than a tenth of the usual number of firms."""
    currency_jump: Action = "flag"
    """The price changes by a factor of about 100 (pence for pounds), or the recorded currency changes."""
    dividend_above_price: Action = "flag"
    """A dividend is larger than the close before it."""
    coverage_collapse: Literal["flag", "off"] = "flag"
    """A date lacks at least a quarter, and at least ten, of the firms that usually have a price. Its rows are
    never rejected, because the rows that exist are sound."""
    earn_nothing: tuple[WrongRule | Literal["return_without_split"], ...] = get_args(WrongRule)
    """Rules whose flagged rows earn nothing: neither a label nor a book has a return from them. A move that
    looks like a split without a record may be a real loss, so it is not among them by default
    (``return_without_split``). Released rows earn."""
    calendar: str | None = None
    """Exchange calendar for all firms, such as XNYS. Null: the calendar of each firm's recorded exchange."""
    calendar_overrides: CalendarOverrides = CalendarOverrides()
    """Closures and sessions that the exchange calendars do not know."""
