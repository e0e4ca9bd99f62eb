"""What pays for its turnover: the net return of a run's book, divided among a model's inputs, or its members.

A coalition pays what the run's book would have earned on the forecasts that are left when the other players
are removed: same sessions, same rules, same costs. The values are Shapley values of the mean over the book's
sessions (SAGE; Covert, Lundberg and Lee 2020). Rank IC, gross return, costs and turnover of the same
coalitions are divided as well, so that an input that forecasts but costs more than it earns is seen.

Legend: T sessions of the panel, R sessions with forecasts, N firms, M coalitions, P players, X rows of the
table, F figures, O outputs.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import polars as pl

from backtest.accounts.performance import counted_sessions
from backtest.inference.means import mean_test
from backtest.splits.combinatorial import path_folds
from features.arrays import BoolArray, Float32Array, FloatArray, IntArray
from features.information_coefficient import rank_ic_by_date
from models.ensemble import EnsembleFitted
from models.explain.groups import over_sessions, whole_players, without_inputs, without_members
from models.explain.players import absent_days, unwrap
from models.explain.shapley import Precision, drawn_coalitions, every_coalition, exact, sample
from pipelines.config.schema import Config
from pipelines.dataset.market import Market
from pipelines.device import one_thread
from pipelines.explain import text
from pipelines.explain.forecasts import RunModel, describe_absent, written
from pipelines.explain.question import Question
from pipelines.explain.shown import NET
from pipelines.results.books import book_orders
from pipelines.results.evaluate import label_overlap, standardised
from pipelines.results.evaluate_run import complete_signal
from pipelines.run.evaluations import evaluation_id, tradable_delay
from pipelines.run.record import RecordedRun

FEW_PLAYERS = 8  # up to here all 256 coalitions are computed
DRAWS = 8  # of more players, unless another number is asked for
FIGURES = ("ic", "gross", "cost", "turnover", "net")  # columns of the table, each with its error

_SHIFT = 10.0  # standard deviations; what is standardised should not be around 0, which counts as far off


@dataclass(frozen=True, slots=True, eq=False)
class Coalitions:
    """The coalitions of a game that lack a player, each once."""

    n_players: int
    keep_MP: BoolArray
    block_M: IntArray  # draw whose replacements a coalition gets
    draws: int | None  # None: every coalition, with the same replacements
    seed: int

    @classmethod
    def of(cls, n_players: int, draws: int | None = None, seed: int = 0) -> "Coalitions":
        """All coalitions of few players, or those of ``draws`` antithetic permutations."""
        if draws is None and n_players > FEW_PLAYERS:
            draws = DRAWS
        if draws is None:
            keep_MP, block_M = every_coalition(n_players), np.zeros(2**n_players, dtype=np.int64)
        else:
            keep_MP, block_M = drawn_coalitions(n_players, draws, seed=seed)
        rows = np.unique(np.column_stack([block_M, keep_MP])[~keep_MP.all(axis=1)], axis=0)
        return cls(n_players, rows[:, 1:] == 1, rows[:, 0], draws, seed)

    def values(self, out_MO: FloatArray, complete_O: FloatArray) -> tuple[FloatArray, ...]:
        """Shapley values [P, O], their Monte Carlo errors [P, O], and the output of no player [O]."""
        keys = zip(self.block_M.tolist(), map(bytes, self.keep_MP), strict=True)
        row = {key: m for m, key in enumerate(keys)}

        def play(keep_MP: BoolArray, draw_M: IntArray) -> FloatArray:
            return np.array(
                [
                    complete_O if keep_P.all() else out_MO[row[draw, bytes(keep_P)]]
                    for draw, keep_P in zip(draw_M.tolist(), keep_MP, strict=True)
                ]
            )

        if self.draws is None:
            found = exact(lambda keep_MP: play(keep_MP, np.zeros(len(keep_MP), np.int64)), self.n_players)
        else:
            found = sample(play, self.n_players, Precision(self.draws), seed=self.seed).values()
        return found.values_PO, found.error_PO, found.base_O


@dataclass(frozen=True, slots=True, eq=False)
class NetBook:
    """The main book of a config on a model's forecasts, at the shortest delay that can be traded."""

    market: Market
    config: Config
    signal_TN: FloatArray  # what the complete model's book trades: mean over seeds, NaN without a forecast

    @property
    def rows_T(self) -> npt.NDArray[np.intp]:  # noqa: N802  (a shape suffix)
        """Sessions with forecasts."""
        return np.flatnonzero(np.isfinite(self.signal_TN).any(axis=1))

    @property
    def delay(self) -> int:
        """Delay of the book and of the label."""
        return tradable_delay(self.config.label.delays)

    def figures(self, scores: Iterable[FloatArray | Float32Array]) -> tuple[list[FloatArray], IntArray]:
        """Measure signals [R, N] session by session: the `FIGURES` in a row, and the length of each.

        The first signal decides which sessions count: those from its book's first trade to the last session,
        and for the IC the forecast dates with a known label.
        """
        rows_T, panel = self.rows_T, self.market.panel
        label_RN = np.where(self.market.universe_TN, self.market.labels[self.delay], np.nan)[rows_T]
        found: list[FloatArray] = []
        for score_RN in scores:
            signal_TN = np.full(self.signal_TN.shape, np.nan)
            signal_TN[rows_T] = score_RN
            orders = next(book_orders(signal_TN, rows_T, self.market, self.config, self.delay))
            result, ic_R = orders.run(panel), rank_ic_by_date(score_RN, label_RN)
            if not found:
                span, known_R = counted_sessions(result), np.isfinite(ic_R)
            net_T, gross_T = result.return_net_T[span], result.return_gross_T[span]
            of_book = (gross_T, gross_T - net_T, result.turnover_T[span], net_T)
            found.append(np.concatenate([ic_R[known_R], *of_book]))
        sessions = span.stop - span.start
        return found, np.array([int(known_R.sum()), *[sessions] * (len(FIGURES) - 1)])


def net_table(
    plan: Coalitions,
    players: Sequence[tuple[str, str]],
    scores: Iterable[FloatArray | Float32Array],
    book: NetBook,
) -> pl.DataFrame:
    """Divide the figures of a book among players of a kind and a name.

    ``scores`` are the signals [R, N] of the plan's coalitions on the forecast dates of the book, whose own
    signal is that of all players. There is a row for each player, and the rows ``base`` (without any player)
    and ``total`` (the book): values and base add up to the total. Figures are means per session as fractions.
    The errors are ``sqrt(w^2 + m^2)`` with the Newey-West error w of the mean over sessions and the Monte
    Carlo error m of the permutations, ``monte_carlo`` for the net return.
    """
    daily, lengths = book.figures(chain([book.signal_TN[book.rows_T]], scores))
    ends = np.cumsum(lengths)[:-1]

    def means(x_XO: FloatArray) -> FloatArray:
        return np.column_stack([part.mean(axis=1) for part in np.split(x_XO, ends, axis=1)])

    complete_O, out_MO = daily[0], np.array(daily[1:])
    value_PO, _, base_O = plan.values(out_MO, complete_O)
    series_XO = np.vstack([value_PO, base_O, complete_O])
    # the errors of means need the means of each draw, and sums are exact to the last digits of the means
    value_PF, sampled_PF, base_F = plan.values(means(out_MO), means(complete_O[None])[0])
    value_XF = np.vstack([value_PF, base_F, means(complete_O[None])])
    sampled_XF = np.vstack([sampled_PF, np.zeros((2, len(FIGURES)))])
    overlap = label_overlap(book.rows_T, book.config.label.horizon)
    rows: list[dict[str, object]] = []
    named = [*players, ("base", "without any player"), ("total", "book")]
    for x, (kind, player) in enumerate(named):
        row: dict[str, object] = {"kind": kind, "player": player}
        for f, series in enumerate(np.split(series_XO[x], ends)):
            lasting = mean_test(series, overlap=overlap if f == 0 else 1).error
            error = float(np.hypot(lasting, sampled_XF[x, f]))
            row |= {FIGURES[f]: float(value_XF[x, f]), f"{FIGURES[f]}_error": error}
        row["monte_carlo"] = float(sampled_XF[x, -1])
        row["verdict"] = verdict(value_XF[x, 0], value_XF[x, -1], error) if x < len(players) else None
        rows.append(row)
    counts = {"draws": plan.draws, "sessions": int(lengths[-1]), "dates": int(lengths[0])}
    return pl.DataFrame(rows, schema_overrides={"verdict": pl.String}).with_columns(
        pl.lit(value, pl.Int64).alias(name) for name, value in counts.items()
    )


def verdict(ic: float, net: float, error: float) -> str:
    """Say by the signs of IC and net return what a player does, and whether net is within two errors of 0.

    >>> verdict(0.01, -0.002, 0.0005)
    'adds IC, costs more than it earns'
    """
    if ic == 0.0 and net == 0.0:
        return "not used"
    if ic > 0.0:
        said = "adds IC, earns more than it costs" if net > 0.0 else "adds IC, costs more than it earns"
    else:
        said = "earns without adding IC" if net > 0.0 else "adds neither IC nor return"
    return said if abs(net) > 2.0 * error else f"{said} (within its error)"


def net_of_model(models: RunModel) -> pl.DataFrame:
    """The table of a run's model: its inputs, and for an ensemble its members too (column ``by``)."""
    run, question, seed = models.run, models.question, models.seed
    signal_TN = complete_signal(run, models.dataset, models.lake, models.model)
    book = NetBook(models.dataset, run.config, signal_TN)
    rows_T = book.rows_T
    fold_R = path_folds(models.folds, len(book.signal_TN))[0][rows_T]
    tested = [(fold, np.flatnonzero(fold_R == fold.index)) for fold in models.folds]
    first = next(iter(models.fits(models.folds[0].index).seeds.values()))
    players = whole_players(first, models.fits(models.folds[0].index).data, int(rows_T[0]), models.families)
    named: dict[str, list[tuple[str, str]]] = {"input": [(player.kind, player.name) for player in players]}
    if isinstance(first, EnsembleFitted):
        named["member"] = [("member", name) for name in first.members]
    plans = {by: Coalitions.of(len(names), question.draws, seed) for by, names in named.items()}
    shape, seeds = (len(rows_T), models.dataset.panel.n_firms), run.config.seeds
    scores = {by: np.zeros((len(plan.keep_MP), *shape), dtype=np.float32) for by, plan in plans.items()}
    with models.progress.stage("explain", total=len(tested) * len(seeds)), one_thread():
        for fold, at in tested:
            fits = models.fits(fold.index)
            for of_seed, fitted in fits.seeds.items():
                for by, plan in plans.items():
                    if by == "member" and isinstance(fitted, EnsembleFitted):
                        of_date = without_members(fitted, plan.keep_MP)
                    else:
                        of_date = without_inputs(
                            *(fitted, players, plan.keep_MP, plan.block_M, fits.data, fold.train),
                            removal=question.removal,
                            seed=seed,
                        )
                    found_MRN = over_sessions(of_date, fitted, fits.data, rows_T[at])
                    for score_RN, found_RN in zip(scores[by], found_MRN, strict=True):
                        score_RN[at] += standardised(found_RN.astype(np.float64) + _SHIFT) / len(seeds)
                models.progress.step(f"{models.model} fold {fold.index} seed {of_seed}")
        tables = [
            net_table(plan, named[by], scores[by], book).select(pl.lit(by).alias("by"), pl.all())
            for by, plan in plans.items()
        ]
    same = {"model": models.model, "book": next(iter(run.config.backtest.books)), "delay": book.delay}
    ends = {"removal": question.removal, "evaluation": evaluation_id(run.config)}
    return pl.concat(tables).select(
        *(pl.lit(value).alias(name) for name, value in same.items()),
        pl.all(),
        *(pl.lit(value).alias(name) for name, value in ends.items()),
    )


def explain_net_of_run(run: RecordedRun, question: Question) -> str:
    """Divide the net return of a model's book, store the table with the run, and return it as text."""
    started, models = time.monotonic(), RunModel(str(run.folder), run.folder.parent, question)
    table = net_of_model(models)
    stored = run.read_table(NET)
    others = [] if stored is None else [stored.filter(pl.col("model") != models.model)]
    run.write_table(NET, pl.concat([*others, table]))
    year, first = models.dataset.panel.periods_per_year, table.row(0, named=True)
    fitted = next(iter(models.fits(models.folds[-1].index).seeds.values()))
    how = "all coalitions" if first["draws"] is None else f"{first['draws']} draws"
    lines = [
        f"{run.run_id}, {models.model}: net return of the book {first['book']} (delay {first['delay']}) on "
        f"{first['sessions']} sessions, divided among the players",
        "returns and costs in % a year, turnover in % a session; error: standard error over sessions and "
        f"draws ({how}, {time.monotonic() - started:.0f} s)",
        describe_absent(question, absent_days(unwrap(fitted))) + "; a replacement is the same for all firms",
    ]
    for (by,), part in table.group_by("by", maintain_order=True):
        head = ["", "By member of the ensemble:"] if by == "member" else [""]
        lines += [*head, text.describe_net(part, year)]
    return "\n".join([*lines, *written(table, question.out)])
