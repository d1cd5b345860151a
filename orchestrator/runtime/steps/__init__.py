"""What a training step does with a micro-batch: `base.py` has the protocol, each other module one step.

`runtime.steps.base.TrainStep` is what a family, or the class that `runtime.train_step` names, decides about a
micro-batch: `parts`, `get_batch`, `forward`, `loss`. What is minimised is the sum over the parts of total / count.
The class comes from the job spec alone; `custom_train_step(job)` raises UserError for everything that can be wrong
with it before the first step.
"""
