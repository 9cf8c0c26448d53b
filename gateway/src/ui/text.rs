//! Other people's text, made safe to show in a terminal.

pub use berth_types::text::{plain_lines, printable, unsafe_to_show};

/// What of a user's own words an error line repeats at most.
pub const QUOTED: usize = 60;

/// The same for bytes that may not even be text.
pub fn printable_bytes(bytes: &[u8], most: usize) -> String {
    printable(&String::from_utf8_lossy(bytes), most)
}

/// As a shell would need it quoted, for a line to be pasted.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_the_terminal_raw() {
        assert_eq!(printable_bytes(b"\xff\x07", 60), "\u{fffd}\\u{7}");
    }

    #[test]
    fn quotes_survive_a_shell() {
        assert_eq!(quoted("echo 'hi'"), r"'echo '\''hi'\'''");
    }
}
