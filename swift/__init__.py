"""The native worker's sources in Swift, which `anespec worker build` builds where they were installed."""
