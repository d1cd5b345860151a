"""The public interface: jobs and their plans, runs and their measurements. `orchestrator` exports its names."""
