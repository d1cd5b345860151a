"""Views of run directories for people: summaries of runs, measurements, and differences between runs.

`review.charts.curves.figure_of` returns at most 1,500 points for each curve in the requested part of the axis,
including the minimum and the maximum; steps that a resume has undone are a trace with `meta: "undone"`. `review.logs`
reads at most some megabytes of a log; `review.logs.log_search.search` ends within ten seconds and says where to
continue. A section uses `review.damage.readable` for files that may be damaged: it returns what was read, or says what
cannot be read.

`review.charts.blend.blend_use(run)` has each source's samples, tokens and epochs so far and at the end, exact for each
period of steps that followed one spec, and `remarks` on what is not exact. `review.usage.taken` is a pure function of
an event log: launches never overlap and are never negative. `review.usage.usage` sums the usage of several runs: the
GPU-hours of users, projects and days add up to the same total.

`review.sweeps.cells.view_of` derives the states of cells from summaries that are already known and reads only the
ledger. `review.sweeps.analysis.importance` gives shares of variance by parameter, never negative and independent of the
metric's unit, or the problem that prevents the analysis.
"""
