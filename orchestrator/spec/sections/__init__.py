"""The sections of a job, beside the model's."""
