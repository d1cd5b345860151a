"""The public interface: jobs and their plans, runs and what they measured. `orchestrator` itself offers its names."""
