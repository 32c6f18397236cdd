"""Calls of the gRPC door, a row a method."""

from typing import Any

from replaysvc.histogram import quantile
from replaysvc.views import CallCounts, HistogramView


def calls_of(counts: CallCounts) -> list[dict[str, Any]]:
    """Returns the calls by method, the most frequent first.

    waits: those that ended since there was nothing for them yet, which is no fault: the caller comes again. errors: all others
    that ended with another code than OK.
    """
    by_method: dict[str, dict[str, HistogramView]] = {}
    for (method, code), view in counts.seconds.items():
        by_method.setdefault(method, {})[code] = view
    rows = []
    for method, codes in by_method.items():
        views = list(codes.values())
        merged = HistogramView(
            bounds=views[0].bounds, counts=tuple(map(sum, zip(*(view.counts for view in views), strict=True))),
            total=sum(view.total for view in views),
        )  # fmt: skip
        count, waits = sum(merged.counts), counts.waits.get(method, 0)
        errors = count - sum(codes["OK"].counts if "OK" in codes else ()) - waits
        row = {"method": method, "count": count, "waits": waits, "errors": errors}
        rows.append(row | {"p50_s": quantile(merged, 0.5), "p99_s": quantile(merged, 0.99)})
    return sorted(rows, key=lambda row: -row["count"])
