"""What the viewer's screens are made of."""
