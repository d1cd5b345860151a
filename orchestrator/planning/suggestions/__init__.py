"""What a plan suggests in place of a job: changes, what each of them would take, and which are worth naming."""
