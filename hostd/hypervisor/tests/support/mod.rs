//! What the contract's cases stand on.

pub mod guest;
pub mod machine;
pub mod net;
pub mod subject;
pub mod template;
