"""Events of runs, sent to addresses that their owners named."""
