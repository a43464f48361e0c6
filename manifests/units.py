"""Numbers with units, for people."""


def bytes_text(count: int) -> str:
    """A byte count in decimal units, e.g. `1.23 GB`."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
