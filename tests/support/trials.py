"""Trials of `tune` run by this process, whose imports are done; test_artifact_bench.py starts real ones."""

from anespec.validate.tuning.trial_process import TrialRequest, run_trial


def trial_here(module: str, arguments: tuple[str, ...], longest_wait: float) -> bytes:
    """What stands in for `child_answer` there."""
    return run_trial(TrialRequest.model_validate_json(arguments[0])).model_dump_json().encode()
