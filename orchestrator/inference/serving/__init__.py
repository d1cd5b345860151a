"""A model over HTTP, in OpenAI's words: `python -m orchestrator.inference.serving FOLDER`, which `serve` starts."""
