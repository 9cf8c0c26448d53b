//! Frames of WebSocket from a server that does as it likes.

use super::run;
use crate::bridge::inject::websocket::tests::{VALUE, frame, frames, read};

#[test]
fn fuzz_websocket() {
    let text = format!("{{\"key\":\"{VALUE}\"}}");
    let (start, end) = text.split_at(14);
    let sample = [
        frame(0x81, text.as_bytes()),
        frame(0x01, start.as_bytes()),
        frame(0x89, b"ping"),
        frame(0x80, end.as_bytes()),
        frame(0x82, &[1; 200]),
        frame(0x88, b"\x03\xe8bye"),
    ]
    .concat();
    let words: &[&[u8]] =
        &[&[0x81, 0], &[0x01, 3], &[0x80, 0], &[0x89, 0], &[0x82, 126, 0, 9], &[0x82, 127], VALUE.as_bytes()];
    run("websocket", |random| {
        let bytes = random.mutate(&sample, words);
        let (mut whole, mut at_once) = (frames(), Vec::new());
        let judged = whole.push(&bytes, &mut at_once);
        let (mut frames, mut output) = (frames(), Vec::new());
        let mut rest = bytes.as_slice();
        let mut in_pieces = Ok(());
        while in_pieces.is_ok() && !rest.is_empty() {
            let (piece, later) = rest.split_at(1 + random.below(rest.len()));
            in_pieces = frames.push(piece, &mut output);
            rest = later;
        }
        // In pieces or whole it is judged and written alike, as frames that a client
        // can read, and the value is not in it.
        assert_eq!((in_pieces, &output), (judged, &at_once));
        if let Some(messages) = read(&output) {
            assert!(
                messages
                    .iter()
                    .all(|(_, text)| !text.windows(VALUE.len()).any(|part| part == VALUE.as_bytes()))
            );
        }
    });
}
