"""What verl is, per version: its keys and defaults, how a person's configuration is read, how a Plan is written."""
