"""A package, so that its tests share one browser, which is gone before other tests begin."""
