"""Text to indexed data sets (`python -m orchestrator.data`), and light readers of their contents.

Light: `data.indexed_dataset.header.read_index` (the header, checked against the sizes of both files),
`data.damage.index_damage` (what is wrong with a complete index, or None),
`data.indexed_dataset.manifest.read_manifest`, `data.tokenizers.vocabulary.vocabulary_size` and `content_hash`,
`data.checks.check_data` (what is known about a blend without reading it), and `data.source_survey.survey` (every data
set of a job once: present, to be created, or unusable). Readers that use an unchecked index raise DataError for a
position outside of it.

Programs: `python -m orchestrator.data prepare RUN_DIR` creates missing data sets and writes events to the run's log;
two at once create each data set once. `python -m orchestrator.data.sample_indexing` builds the sample indices that
training would build: an IndexRequest on standard input, an IndexAnswer on standard output.

Heavy: `data.tokenizers.tokenizer.load_tokenizer` and `data.samples.datasets.build_datasets`, which raises the same
errors on every rank and checks everything before it builds anything. A part (train, validation, test) with sources of
its own takes nothing from `data.blend`. `data.tasks.files.read_examples` reads MNLI and RACE; each invalid row is a
UserError with file and line.
"""
