"""Training samples: data sets, blends, sample indices, and the position in them.

`data.samples.predicted_blend` computes blends exactly as megatron-core does: `Draws` says which source provides which
sample, `built` gives the epochs of an index, and `asked_of_sources` the number of samples requested from each source.

The order of samples depends on the files, `data.seed`, the sequence length, and the number of samples that the run was
to read when it began. `data.samples.position.DataPosition` is the position of a run: what it has drawn from each
source, for each way to cut it into samples, and the sample at which its current blend began. `position_of(job, before,
consumed, end)` is the position at a start. `data.samples.continued_samples` provides the samples from there on: for
each source, the rest of megatron-core's order, then further epochs, by a permutation that needs no memory.
"""
