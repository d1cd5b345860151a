"""Text to indexed data sets (`python -m orchestrator.data`), and light readers of what they hold.

Light: `data.indexed_dataset.header.read_index` (the header, checked against the sizes of both files),
`data.damage.index_damage` (what is wrong with a whole index, or None), `data.indexed_dataset.manifest.read_manifest`,
`data.tokenizers.vocabulary.vocabulary_size` and `content_hash`, `data.checks.check_data` (what can be said about a
blend without reading it), and `data.preparation.survey` (every data set of a job once: there, to be made, or in
trouble). What reads by an index that was not looked through raises DataError for a place outside of it.

Programs: `python -m orchestrator.data prepare RUN_DIR` makes what is missing and tells the run's event log; two at
once make each data set once. `python -m orchestrator.data.indexing` builds the sample indices that a training would
build: an IndexRequest on standard input, an IndexAnswer on standard output.

Heavy: `data.tokenizers.tokenizer.load_tokenizer` and `data.samples.datasets.build_datasets`, which gives the same
errors on every rank and checks before anything is built. A part (train, validation, test) that has sources of its own
takes nothing from `data.blend`. `data.tasks.files.read_examples` reads MNLI and RACE; each wrong row is a UserError
with file and line.
"""
