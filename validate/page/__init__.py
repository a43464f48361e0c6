"""report.html: all that is known of an artifact on one page, from its manifest and verdicts alone."""
