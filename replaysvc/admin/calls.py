"""The calls of the gRPC door, as the page shows them."""

from typing import Any

from replaysvc.histogram import quantile
from replaysvc.views import CallCounts, HistogramView


def calls_of(counts: CallCounts) -> list[dict[str, Any]]:
    """Returns the calls by method, the most frequent first. waits: those that ended since there was not enough to draw, or no
    room to write, for as long as they were to wait; errors: all others that ended with another code than OK."""
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
        count = sum(merged.counts)
        fine, waits = sum(codes["OK"].counts if "OK" in codes else ()), counts.waits.get(method, 0)
        row = {"method": method, "count": count, "errors": count - fine - waits, "waits": waits}
        rows.append(row | {"p50_s": quantile(merged, 0.5), "p99_s": quantile(merged, 0.99)})
    return sorted(rows, key=lambda row: -row["count"])
