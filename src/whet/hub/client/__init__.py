"""What speaks to a hub: settings and tokens of this machine, requests, pushing, pulling."""
