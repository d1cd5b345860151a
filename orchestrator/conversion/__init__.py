"""Checkpoints in and out of Hugging Face's layout: `python -m orchestrator.conversion`.

What reads a checkpoint's pickles does so within `weights_only.weights_only()`: they can name no code. `reshape`
writes a checkpoint anew for another layout, every tensor the same bit for bit; `layout` in its marker stays that of
its generators.
"""
