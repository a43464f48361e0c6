"""The claims of sources are multiplied by how often such claims came true."""

from hypothesis import given
from hypothesis import strategies as st

from anespec.runtime.speculation.sequence_policy import ClaimRates, SequenceAcceptance


@given(st.floats(0.001, 1.0), st.integers(0, 200), st.integers(0, 200))
def test_probabilities_move_from_claims_towards_what_happened(claim: float, right: int, wrong: int) -> None:
    claims = ClaimRates()
    assert claims.probability("s", claim) == claim
    for accepted in (True,) * right + (False,) * wrong:
        claims.learn("s", claim, accepted)
    found = claims.probability("s", claim)
    assert 0 < found <= 1
    if right + wrong:
        truth = right / (right + wrong)
        assert min(claim, truth) - 1e-9 <= found or right + wrong > 200, "older ones may be forgotten"
        assert wrong or found >= claim - 1e-12
        assert right or found <= claim + 1e-12
    assert claims.probability("another", claim) == claim


def test_a_sequence_whose_claims_do_not_come_true_is_believed_less_and_no_other_is() -> None:
    claims = ClaimRates()
    for _ in range(200):
        claims.learn("me", 0.8, True)
    wrong, right, unseen = (SequenceAcceptance(claims) for _ in range(3))
    for _ in range(4):
        wrong.learn("me", [0.8, 0.8], 0)
        right.learn("me", [0.8, 0.8], 2)
    known = claims.probability("me", 0.8)
    assert known > 0.9
    assert wrong.probability("me", 0.8) < 0.6 * known
    assert right.probability("me", 0.8) == unseen.probability("me", 0.8) == known
    for _ in range(400):
        wrong.learn("me", [0.8], 1)
    assert wrong.probability("me", 0.8) > 0.9 * claims.probability("me", 0.8), "what it was is forgotten"


@given(st.lists(st.tuples(st.lists(st.floats(0.001, 1.0), max_size=8), st.integers(0, 8)), max_size=50))
def test_no_sequence_is_believed_more_than_all_are(chains: list[tuple[list[float], int]]) -> None:
    claims = ClaimRates()
    sequence = SequenceAcceptance(claims)
    for chain, right in chains:
        sequence.learn("me", chain, min(right, len(chain)))
        assert 0 < sequence.probability("me", 0.5) <= claims.probability("me", 0.5)


def test_what_follows_a_miss_says_nothing_and_old_claims_fade() -> None:
    claims = ClaimRates()
    sequence = SequenceAcceptance(claims)
    sequence.learn("s", (0.85, 0.55, 0.25), 1)
    assert claims.probability("s", 0.25) == 0.25
    assert claims.probability("s", 0.55) < 0.55
    for _ in range(5000):
        claims.learn("s", 0.95, True)
    for _ in range(1500):
        claims.learn("s", 0.95, False)
    assert claims.probability("s", 0.95) < 0.1
