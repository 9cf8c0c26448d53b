//! The bridge process. Everything it needs comes over its standard input.

fn main() {}
