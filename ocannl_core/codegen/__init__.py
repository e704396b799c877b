"""The C-family renderer: a scheduled nest as the text of one kernel."""
