//! Where gRPC's messages end.
//!
//! A client that waits for an answer before it asks again never sends anything
//! that would show whether the answer's last bytes begin a secret. A message says
//! how long it is, so its end is known, and nothing of it is held back.

/// Compressed or not, and the length.
const PREFIX: usize = 5;

#[derive(Debug, Default)]
pub struct Messages {
    prefix: Vec<u8>,
    /// Of the message under way.
    left: usize,
}

impl Messages {
    /// The next part of the data that belongs to one message, its prefix included,
    /// and whether that message ends with it.
    pub fn next<'a>(&mut self, data: &mut &'a [u8]) -> Option<(&'a [u8], bool)> {
        if data.is_empty() {
            return None;
        }
        let mut taken = 0;
        if self.left == 0 {
            taken = data.len().min(PREFIX - self.prefix.len());
            self.prefix.extend_from_slice(data.get(..taken).unwrap_or_default());
            let [_, length @ ..] = self.prefix.first_chunk::<PREFIX>().copied().unwrap_or_default();
            if self.prefix.len() == PREFIX {
                self.left = u32::from_be_bytes(length) as usize;
                self.prefix.clear();
            } else {
                return Some((std::mem::take(data), false));
            }
        }
        let of_body = self.left.min(data.len() - taken);
        self.left -= of_body;
        let (part, rest) = data.split_at(taken + of_body);
        *data = rest;
        Some((part, self.left == 0))
    }
}

/// Of these every body is a sequence of messages.
pub fn has_messages(content_type: &str) -> bool {
    content_type
        .strip_prefix("application/grpc")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('+') || rest.starts_with("-web"))
        && !content_type.ends_with("-text")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each message's text, however the bytes are cut.
    fn ends(bytes: &[u8], size: usize) -> Vec<Vec<u8>> {
        let mut messages = Messages::default();
        let (mut found, mut open) = (Vec::new(), Vec::new());
        for mut piece in bytes.chunks(size) {
            while let Some((part, is_end)) = messages.next(&mut piece) {
                open.extend_from_slice(part);
                if is_end {
                    found.push(std::mem::take(&mut open));
                }
            }
        }
        found.extend((!open.is_empty()).then_some(open));
        found
    }

    #[test]
    fn every_end_is_found_in_any_pieces() {
        let wanted: [&[u8]; 4] =
            [b"\0\0\0\0\x05hello", b"\x01\0\0\0\0", b"\0\0\0\0\x01s", b"\0\0\0\0\x09cut s"];
        let bytes = wanted.concat();
        for size in 1..=bytes.len() {
            assert_eq!(ends(&bytes, size), wanted, "in pieces of {size}");
        }
    }

    #[test]
    fn only_grpc_has_them() {
        for kind in ["application/grpc", "application/grpc+proto", "application/grpc-web+proto"] {
            assert!(has_messages(kind), "{kind}");
        }
        for kind in ["application/json", "application/grpc-web-text", "application/grpcx", "text/plain"] {
            assert!(!has_messages(kind), "{kind}");
        }
    }
}
