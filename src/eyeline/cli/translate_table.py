"""How good translations were, as a table: the model beside copying."""

from __future__ import annotations

from eyeline.cli.output import console, counted, duration, percent, table
from eyeline.translation import Report


def show(report: Report, seconds: float) -> None:
    """Exact match and character error rate, and what is left where copying is wrong."""
    out = console()
    made = table(out, "", "exact", "exact where changed", "character errors")
    for name, exact, changed, errors in (
        ("model", report.exact, report.changed_exact, report.error_rate),
        ("copying the source", report.copy_exact, 0.0, report.copy_error_rate),
    ):
        made.add_row(name, percent(exact), percent(changed), percent(errors))
    out.print(made)
    pairs = counted(report.pairs, "pair", "pairs")
    out.print(f"{pairs}, {report.changed:,} changed by the reference · {duration(seconds)}")
