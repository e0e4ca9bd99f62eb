"""Writes the guide's page on the result tables: ``python docs/result_tables.py > docs/result_tables.md``."""

from pipelines.columns import TABLES


def page() -> str:
    """Write every table with its columns, as they are declared."""
    parts = [
        "# Result tables",
        "<!-- Written by `python docs/result_tables.py > docs/result_tables.md`; a test compares both. -->",
        "An evaluation stores its tables in `RUN/evaluations/ID/`, one Parquet file a table. "
        "`peerglass.open_run(RUN).table(NAME)` reads one of them. A column means the same in every table. "
        "Returns, weights and shares are fractions; a report has the units in brackets. "
        "Null: unknown.",
    ]
    for one in TABLES.values():
        lines = ["| column | type | name in reports | holds |", "|---|---|---|---|"]
        for name, column in one.columns.items():
            unit = f" ({column.unit})" if column.unit else ""
            lines.append(f"| `{name}` | {column.dtype} | {column.label}{unit} | {column.meaning} |")
        parts += [f"## {one.name}", one.meaning, "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
