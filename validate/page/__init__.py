"""report.html: all verdicts on an artifact on one page, made only from its manifest and gates/."""
