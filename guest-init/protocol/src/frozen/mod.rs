//! Earlier versions as they were when they were the latest, word for word, so that
//! today's ends are tried against them and not against what they are thought to be.
//! Nothing here is ever changed, and nothing but tests uses it.

pub mod v1;
