//! What people read: where it goes, how it is laid out, what is escaped.

pub mod address;
pub mod progress;
pub mod screen;
pub mod table;
pub mod text;

pub use address::Address;
pub use progress::Progress;
pub use screen::{LiveOn, Screen};
pub use table::{Style, Table};
