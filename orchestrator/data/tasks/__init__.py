"""Labelled examples for fine-tuning: `mnli.py` and `race.py` read their files, `dataset.py` makes samples of them."""
