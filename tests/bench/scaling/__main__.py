"""`python -m tests.bench.scaling`: writes docs/scaling.md and its plots."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.bench.scaling.plot import chart
from tests.bench.scaling.replay import SCALERS, Run, replay
from tests.bench.scaling.traces import TRACES, Trace

DOCS = Path(__file__).parents[3] / "docs"
_PLOTTED = ("OutboxRelay", "HPA, CPU 80 %", "KEDA, 5 s")

_HEAD = """# Autoscaling, beside an HPA and KEDA

Written by `python -m tests.bench.scaling`; what it says is asserted in tests/unit/operator/test_scaling_traces.py.
It is a simulation, so it is the same on every machine: a pair of 16 lanes, and at most 8 pods that send 5,000 rows/s
each and need 8 s to start.

- **OutboxRelay** is the operator's own decision with its default settings, `minReplicas: 0` and, to be comparable,
  `idleAfterSeconds: 300`. It measures every 5 s, counts so far and no further, and estimates what is written as it does
  in a cluster.
- **HPA** is the documented formula on CPU utilisation with target 80 %: every 15 s, tolerance 10 %, 300 s of
  stabilisation, the default scale-up policy.
- **KEDA** is such an HPA on the count of rows that wait, with polling every 30 s for the step from and to zero and
  `cooldownPeriod` 300 s. "KEDA, 5 s" has for target the rows that one pod sends in 5 s: a number that somebody must
  know beforehand, while ours learns it.

What the figures say:

- At the end of every trace nothing waits with ours. The HPA never makes up for a pod that slows down: on average its
  pods are idle, while the lanes of that one starve.
- The HPA where it keeps up, and KEDA with a target of 10 s or less, take more pod-hours than ours, and their rows wait
  as long or longer (the mean; differences below a second are none, as we look every five).
- KEDA with larger targets takes fewer pod-hours in most traces (not in the outage), since rows wait: a count of rows
  says nothing of the load, so what needs three pods gets them only while there is a backlog for three.

"""


def _row(run: Run) -> str:
    return (
        f"| {run.name} | {run.pod_hours:.2f} | {run.end_lag:.0f} | {run.mean_lag:.1f} | {run.p99_lag:.0f} "
        f"| {max(run.lags):.0f} | {max(run.counts)} | {run.changes} |"
    )


def _section(trace: Trace, runs: list[Run]) -> str:
    name = trace.name.replace(" ", "-")
    lines = [
        f"## {trace.name.capitalize()}: {trace.text}",
        "",
        f"![backlog and pods over time](scaling-{name}.svg)",
        "",
        "| | pod-hours | lag at the end, s | mean lag, s | 99th percentile, s | longest, s | most pods | changes |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(run) for run in runs),
    ]
    return "\n".join(lines)


def main() -> None:
    """Replay everything and write the page."""
    argparse.ArgumentParser(prog="python -m tests.bench.scaling", description=__doc__).parse_args()
    sections = []
    for trace in TRACES:
        runs = [replay(trace, make()) for make in SCALERS]
        plotted = [run for run in runs if run.name in _PLOTTED]
        name = trace.name.replace(" ", "-")
        (DOCS / f"scaling-{name}.svg").write_text(chart(f"{trace.name.capitalize()}: {trace.text}", plotted))
        sections.append(_section(trace, runs))
        print(sections[-1], end="\n\n")
    (DOCS / "scaling.md").write_text(_HEAD + "\n\n".join(sections) + "\n")


if __name__ == "__main__":
    main()
