//! The uncompressed kernel out of Debian's bzImage.
//!
//! Hypervisors enter an ELF vmlinux directly, which saves the guest from
//! unpacking itself: a third of a second of every boot without KVM. The boot
//! protocol (2.08 and later) says where the compressed kernel lies.

use super::{ImageError, tool};

const GZIP: &[u8] = &[0x1f, 0x8b];
/// How each compression begins, and what undoes it.
const TOOLS: &[(&[u8], &[&str])] = &[
    (&[0x02, 0x21, 0x4c, 0x18], &["lz4", "-dc"]),
    (&[0xfd, b'7', b'z', b'X', b'Z'], &["xz", "-dc"]),
    (&[0x28, 0xb5, 0x2f, 0xfd], &["zstd", "-dc"]),
    (GZIP, &["gzip", "-dc"]),
];

pub fn extract(bzimage: &[u8]) -> Result<Vec<u8>, ImageError> {
    let payload = payload(bzimage).ok_or(ImageError::Kernel("it is no bzImage of boot protocol 2.08"))?;
    let vmlinux = decompress(payload)?;
    if vmlinux.starts_with(b"\x7fELF") {
        Ok(vmlinux)
    } else {
        Err(ImageError::Kernel("what it contains is no ELF file"))
    }
}

fn payload(bzimage: &[u8]) -> Option<&[u8]> {
    let byte = |at: usize| bzimage.get(at).copied();
    let word = |at: usize| {
        let bytes = bzimage.get(at..at + 4)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    let version = u16::from_le_bytes([byte(0x206)?, byte(0x207)?]);
    if bzimage.get(0x202..0x206)? != b"HdrS" || version < 0x0208 {
        return None;
    }
    // A count of 0 means 4, for the oldest boot loaders.
    let setup_sectors = match byte(0x1f1)? {
        0 => 4,
        count => usize::from(count),
    };
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    bzimage.get(start..start.checked_add(word(0x24c)?)?)
}

fn decompress(payload: &[u8]) -> Result<Vec<u8>, ImageError> {
    let (_, command) = TOOLS
        .iter()
        .find(|(magic, _)| payload.starts_with(magic))
        .ok_or(ImageError::Kernel("its compression is unknown"))?;
    // The kernel's build appends the unpacked length to all but gzip, which has its own.
    let end = if payload.starts_with(GZIP) { payload.len() } else { payload.len().saturating_sub(4) };
    tool::filter(command, payload.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bzImage as the kernel's build makes them, around a gzip payload.
    fn bzimage(kernel: &[u8]) -> Vec<u8> {
        let packed = tool::filter(&["gzip", "-c"], kernel).unwrap();
        let mut image = vec![0; 0x400 + 16];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x020fu16.to_le_bytes());
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&u32::try_from(packed.len()).unwrap().to_le_bytes());
        image.extend_from_slice(&packed);
        image.extend_from_slice(b"what follows");
        image
    }

    #[test]
    fn the_kernel_comes_out_as_it_went_in() {
        let kernel = b"\x7fELF and so on";
        assert_eq!(extract(&bzimage(kernel)).unwrap(), kernel);
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        let whole = bzimage(b"\x7fELF");
        for bad in [&b""[..], &[0; 4096], whole.get(..0x400).unwrap(), &bzimage(b"no elf")] {
            assert!(extract(bad).is_err());
        }
    }
}
