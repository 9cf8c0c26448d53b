//! Writes the archive format that the kernel unpacks as its first filesystem.
//!
//! `newc` is a hundred bytes of hexadecimal per entry; writing it here saves a
//! tool and lets a device node be made without the right to make one.

/// An archive in memory; boot archives are a megabyte or two.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

impl Archive {
    pub fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY | 0o755, (0, 0), &[]);
    }

    pub fn file(&mut self, name: &str, permissions: u32, content: &[u8]) {
        self.entry(name, REGULAR | permissions, (0, 0), content);
    }

    pub fn character_device(&mut self, name: &str, permissions: u32, device: (u32, u32)) {
        self.entry(name, CHARACTER_DEVICE | permissions, device, &[]);
    }

    /// Archives may follow each other: the kernel unpacks one after the other.
    pub fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.inode += 1;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        let fields = [
            self.inode,
            mode,
            0, // owner
            0, // group
            links,
            0, // modification time: the same input gives the same archive
            length(content),
            0, // device that the file is on
            0,
            device.0,
            device.1,
            length(name.as_bytes()) + 1,
            0, // checksum, unused in this variant
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// The format's own limit; no boot file comes near it.
fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let mut archive = Archive::default();
        archive.file("init", 0o755, b"abc");
        let bytes = archive.finish();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.starts_with("07070100000001000081ed00000000000000000000000100000000"));
        assert!(text.contains("init\0"));
        assert!(text.contains("TRAILER!!!\0"));
        assert_eq!(bytes.len() % 4, 0);
        // 110 bytes of header, the name with its end, padding to a multiple of four.
        assert_eq!(bytes.get(116..119), Some(&b"abc"[..]));
    }
}
