"""A model over HTTP with OpenAI's API: `python -m orchestrator.inference.serving FOLDER`, which `serve` starts.

`spec.generation.Generation` limits every number in a generation request, from any interface. Every rank calls
`Model.reload()` after an error that may have occurred on a single rank. The other ranks get an error of their own: over
gloo because connections close, over NCCL from `runtime.processes.process_groups.end_waiting`. `Model.requests` needs no
weights and works during a reload. With several ranks, `Engine.run()` reloads after every error in a batch. Only CUDA
errors end it.
"""
