"""What pages are made of: templates, styles, scripts and drawings, for servers and for `report.html`."""
