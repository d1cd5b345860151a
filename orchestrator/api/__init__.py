"""The public interface: jobs and their plans, runs and their measurements. `orchestrator` exports its names."""

# Imported first: fifteen imports deep, each of the thousands of calls that make pydantic's models may map and unmap
# memory for its frame, up to Python 3.12 (github.com/python/cpython/issues/142183).
from orchestrator.spec import loading as loading
