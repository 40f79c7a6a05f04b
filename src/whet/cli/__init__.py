"""The command line: one module per command group, and no logic of its own.

Every command reads its arguments, calls one function of a room, and prints what comes back. What costs time to import
(torch, and the rooms themselves) is imported inside the commands, so that `whet --help` answers at once.
"""
