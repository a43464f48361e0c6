"""`anespec chat`: a conversation with a model, in a terminal or over pipes."""
