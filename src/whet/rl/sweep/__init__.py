"""`whet train sweep`: several runs of one config that differ in chosen keys, and which of them is best.

`config.py` has the keys of a sweep, `search.py` which trial comes next (pure), `state.py` the file that survives a
kill, `sweep.py` the processes. Each trial is an ordinary run beside the sweep's folder.
"""
