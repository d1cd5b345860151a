"""What a training draws: data sets, blends, sample indices, and the position in them.

`data.samples.blend_samples` is megatron-core's arithmetic of blends, number for number: `Draws` says who gives which
sample, `built` the epochs of an index, `asked_of_sources` how many samples each source is asked for.

The order of samples depends on the files, `data.seed`, the sequence length, and the number of samples that the run
was to read when it began. `data.samples.position.DataPosition` says how far a run is: what it has drawn from each
source, for each way to cut it into samples, and from which sample on it draws from its current blend.
`position_of(job, before, consumed, end)` is the position of a start. `data.samples.resumed_dataset` makes the samples
from there on: of each source the rest of megatron-core's order, then further epochs, by a permutation that needs no
memory.
"""
