"""The command line: one file for each verb, and what verbs share."""
