"""The command line: a module for each verb, and the helpers that verbs share."""
