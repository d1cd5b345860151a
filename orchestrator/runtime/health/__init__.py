"""The check before the first step, one process per node: `python -m orchestrator.runtime.health RUN_DIR`.

Each node looks at itself (GPUs and their free memory, run directory, temporary folder), compares its clock with that of
node 0, and does an all-reduce with every other node. Node 0 judges by what the others left in its key-value store, so
that nothing that a node does, or does not do, can make the check hang. Its verdict names the node at fault.
"""
