"""What a job reaches on this machine: measured, held against its plan and against the roofline."""
