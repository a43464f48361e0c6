"""Sample texts and speeds for the report page."""
