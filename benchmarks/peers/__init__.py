"""Draft sources of other projects, with which `auto` is compared."""
