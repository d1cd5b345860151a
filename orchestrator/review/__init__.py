"""What a person reviews, read from run directories: summaries of runs, measurements, and what differs between them.

`review.charts.curves.figure_of` gives at most 1,500 points for each curve of the part of the axis that is asked for,
the least and the greatest among them; what a resume has undone is a trace with `meta: "undone"`. `review.logs` reads
at most some megabytes of a log; `review.logs.log_search.search` ends within ten seconds and says where it goes on.
`review.damage.readable` is how a section reads what may be damaged: it answers, and says what cannot be read.

`review.charts.blend.blend_use(run)` has each source's samples, tokens and epochs so far and at the end, exact for
each period of steps that followed one spec, and `remarks` on what is not. `review.usage.taken` is a pure function of
an event log: launches never overlap and are never negative. `review.usage.usage` sums what several runs took: the
GPU-hours of users, projects and days add up to the same.

`review.sweeps.cells.view_of` derives states of cells from summaries that are known already and reads nothing but the
ledger. `review.sweeps.analysis.importance` gives shares of variance by parameter, never negative, the same whatever
the metric's unit, or the problem why nothing can be said.
"""
