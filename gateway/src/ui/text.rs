//! Other people's text, made safe to show in a terminal.

use std::fmt::Write;

/// What of a user's own words an error line repeats at most.
pub const QUOTED: usize = 60;

/// Escapes what would move the cursor or turn the text around, and cuts what
/// is too long.
pub fn printable(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == most {
            shown.push('…');
            break;
        }
        if unsafe_to_show(character) {
            let _ = write!(shown, "{}", character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// The same for bytes that may not even be text.
pub fn printable_bytes(bytes: &[u8], most: usize) -> String {
    printable(&String::from_utf8_lossy(bytes), most)
}

/// As a shell would need it quoted, for a line to be pasted.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Control characters, and those that are invisible or reverse the direction.
pub fn unsafe_to_show(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_the_terminal_raw() {
        assert_eq!(printable("a\u{1b}[2Jb", 60), "a\\u{1b}[2Jb");
        assert_eq!(printable("a\u{202e}b", 60), "a\\u{202e}b");
        assert_eq!(printable("größe", 60), "größe");
        assert_eq!(printable("aaaa", 2), "aa…");
        assert_eq!(printable_bytes(b"\xff\x07", 60), "\u{fffd}\\u{7}");
    }

    #[test]
    fn quotes_survive_a_shell() {
        assert_eq!(quoted("echo 'hi'"), r"'echo '\''hi'\'''");
    }
}
