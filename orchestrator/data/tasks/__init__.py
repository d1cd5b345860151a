"""Labelled examples to fine-tune on: `mnli.py` and `race.py` read their files, `dataset.py` makes samples of them."""
