"""Converting checkpoints to and from Hugging Face's format: `python -m orchestrator.conversion`.

A checkpoint's pickles are read only within `weights_only.weights_only()`, so they cannot refer to code. `reshape`
rewrites a checkpoint for another layout, with every tensor bitwise the same; `layout` in its marker stays that of its
random generators.
"""
