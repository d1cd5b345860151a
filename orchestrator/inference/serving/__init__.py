"""A model over HTTP, in OpenAI's words: `python -m orchestrator.inference.serving FOLDER`, which `serve` starts.

`spec.generation.Generation` bounds every number of a generation request, from any interface. `Model.reload()`: every
rank calls it after an error that a single rank may have had. The other ranks get an error of their own: over gloo
because connections close, over NCCL from `runtime.processes.process_groups.end_waiting`. `Model.requests` needs no
weights and works meanwhile. With several ranks, `Engine.run()` reloads after every error of a batch. Only errors of
CUDA end it.
"""
