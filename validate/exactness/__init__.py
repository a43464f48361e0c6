"""The exactness gate: tokens must not depend on how passes are composed."""
