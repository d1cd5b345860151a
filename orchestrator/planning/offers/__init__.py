"""What a plan offers in place of a job: changes, what each of them would take, and which are worth naming."""
