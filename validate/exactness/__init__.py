"""The exactness gate: tokens may not depend on how passes are put together."""
