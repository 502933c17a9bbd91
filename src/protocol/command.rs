//! Commands: a `BaseCommand` as an enum.
