"""What is checked of a job before it starts, beside the rules of its spec."""
