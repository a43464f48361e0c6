"""Decide which drafts run, and ask the draft source for them.

`policy` decides how many draft rows a pass has, from the costs of passes (`pass_costs`, updated by
`running_costs`) and the estimated probabilities of draft tokens. `sequence_policy` estimates these, and
decides whether to ask for a draft of a sequence, and for how many tokens. `proposals` asks the draft source,
through `sessions`. docs/drafting.md explains the policy with its formulas.
"""
