//! Finding secrets in what a server sends back, and putting the placeholder
//! there instead, however an encoder wrote them.

mod escapes;
mod lanes;
mod needles;
mod stream;

pub use needles::{Finder, Needles, TooMuch};
pub use stream::{Stream, Style};

#[cfg(test)]
mod tests;
