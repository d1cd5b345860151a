"""The check before the first step, one process per node: `python -m orchestrator.runtime.health RUN_DIR`.

Each node checks itself (GPUs and their free memory, run directory, temporary folder), compares its clock with that of
node 0, and does an all-reduce with every other node. Node 0 decides by what the others have left in its key-value
store, so that the check cannot hang, whatever a node does or does not do. Its verdict names the node at fault.
"""
