"""What a training step does with a micro-batch: `base.py` has the protocol, each other module one step.

A family, or the class that `runtime.train_step` names, implements `runtime.steps.base.TrainStep`: `parts`, `get_batch`,
`forward`, `loss`. The minimised value is the sum over the parts of total / count. The class comes from the job spec
alone; `custom_train_step(job)` raises UserError for everything that can be wrong with it before the first step.
"""
