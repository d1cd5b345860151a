"""Changes to a job that a plan suggests, what each would take, and which are worth naming."""
