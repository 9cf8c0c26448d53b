//! Other people's text, made safe to show: what guests, clients and files say must not
//! move a terminal's cursor, turn the text around or hide in it.

use std::fmt::Write;

/// Control characters, and those that are invisible or reverse the direction.
pub fn unsafe_to_show(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// One line: what is unsafe to show is escaped, and what is too long is cut.
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

/// One line of what was said in many, or with a terminal's colours: what is unsafe
/// to show is left out, and what is too long is cut.
pub fn plain(text: &str, most: usize) -> String {
    text.chars().filter(|character| !unsafe_to_show(*character)).take(most).collect()
}

/// Many lines, such as a console's: their ends and tabs stay, what else is unsafe to
/// show is left out.
pub fn plain_lines(text: &str) -> String {
    text.chars().filter(|character| matches!(character, '\n' | '\t') || !unsafe_to_show(*character)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each kind: an escape, a newline, a C1 control, bidi, zero width, a tag.
    const UNSAFE: &str = "a\u{1b}[2J\n\u{9b}\u{202e}\u{2066}\u{200b}\u{61c}\u{2060}\u{feff}\u{ad}\u{e0041}b";

    #[test]
    fn nothing_reaches_the_terminal_raw() {
        for shown in [printable(UNSAFE, 200), plain(UNSAFE, 200), plain_lines(UNSAFE).replace('\n', "")] {
            assert!(!shown.chars().any(unsafe_to_show), "{shown:?}");
            assert!(shown.starts_with('a') && shown.ends_with('b'), "{shown:?}");
        }
        assert_eq!(printable("a\u{1b}[2Jb", 60), "a\\u{1b}[2Jb");
        assert_eq!(printable("a\u{202e}b", 60), "a\\u{202e}b");
        assert_eq!(plain_lines("boot\r\n\u{1b}[2Jok\t1"), "boot\n[2Jok\t1");
    }

    #[test]
    fn what_is_safe_stays_and_what_is_long_is_cut() {
        assert_eq!(printable("größe 你好", 60), "größe 你好");
        assert_eq!((printable("aaaa", 2), plain("aaaa", 2)), ("aa…".to_owned(), "aa".to_owned()));
    }
}
