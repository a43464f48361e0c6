"""Decide which drafts run, and ask the draft source for them.

`policy` decides how many draft rows a pass has, with the costs of passes (`pass_costs`, kept current by
`running_costs`) and the estimated probabilities of draft tokens (`acceptance`). `sequence_policy` decides
whether and how far ahead a sequence's drafter is asked. `proposals` asks it, by `sessions`. docs/drafting.md
explains the policy with its formulas.
"""
