"""From the command line and config files to the config of each evaluation."""
