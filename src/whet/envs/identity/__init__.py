"""Which environment an id names, and whether what is installed is that one."""
