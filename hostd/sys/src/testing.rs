//! For the tests of all crates: what needs root says so and passes without it.

use std::io::Write as _;

/// The first line of a test that needs root: without root the test ends here, and says so.
#[macro_export]
macro_rules! needs_root {
    () => {
        if $crate::testing::lacks_root() {
            return;
        }
    };
}

/// Tells why the test of this thread is skipped, if it is. Not by `println!`, which shows only
/// what a test that fails has printed.
pub fn lacks_root() -> bool {
    if rustix::process::geteuid().is_root() {
        return false;
    }
    let thread = std::thread::current();
    let _ = writeln!(std::io::stderr(), "skipped: {}: needs root", thread.name().unwrap_or("a test"));
    true
}
