//! The SFTP server against OpenSSH's own client.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may fail")]

mod support;

use std::{
    fs,
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use support::PROGRAM;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("berth-sftp-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a batch and returns what the client printed; it stops at the first
/// line that fails, unless the line begins with `-`.
fn sftp(directory: &Path, batch: &str) -> (bool, String) {
    let mut client = Command::new("sftp")
        .args(["-q", "-b", "-", "-D"])
        .arg(format!("{PROGRAM} sftp"))
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("OpenSSH's sftp is installed");
    client.stdin.take().unwrap().write_all(batch.as_bytes()).unwrap();
    let output = client.wait_with_output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn files_go_there_and_back_unchanged() {
    let scratch = Scratch::new("copy");
    let data: Vec<u8> = (0..5_000_003_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    fs::write(scratch.join("a"), &data).unwrap();
    fs::set_permissions(scratch.join("a"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::write(scratch.join("empty"), b"").unwrap();
    let (ok, text) = sftp(&scratch.0, "put -p a b\nget -p b c\nput empty e2\nget e2 e3\n");
    assert!(ok, "{text}");
    assert!(fs::read(scratch.join("b")).unwrap() == data);
    assert!(fs::read(scratch.join("c")).unwrap() == data);
    assert_eq!(fs::read(scratch.join("e3")).unwrap(), b"");
    let (a, b) = (fs::metadata(scratch.join("a")).unwrap(), fs::metadata(scratch.join("b")).unwrap());
    assert_eq!((a.mode(), a.mtime()), (b.mode(), b.mtime()));
}

#[test]
fn everything_a_client_does_with_names() {
    let scratch = Scratch::new("names");
    fs::write(scratch.join("f"), b"text").unwrap();
    let batch = "mkdir d\nrename f d/g\nsymlink g d/l\nln d/g d/h\nchmod 600 d/g\ncd d\npwd\nls -la\ncopy g k\nrm h\ndf\n";
    let (ok, text) = sftp(&scratch.0, batch);
    assert!(ok, "{text}");
    assert!(text.contains("-rw-------   2 ") && text.contains(" .."), "{text}");
    assert!(text.contains(&format!("{}", scratch.join("d").display())), "{text}");
    assert_eq!(fs::read_link(scratch.join("d/l")).unwrap(), Path::new("g"));
    assert_eq!(fs::read(scratch.join("d/k")).unwrap(), b"text");
    assert!(!scratch.join("d/h").exists() && !scratch.join("f").exists());
    let (ok, text) = sftp(&scratch.0, "rm d/*\nrmdir d\nls\n");
    assert!(ok, "{text}");
    assert!(!scratch.join("d").exists());
}

#[test]
fn what_cannot_be_done_is_said() {
    let scratch = Scratch::new("refused");
    for (line, expected) in [
        ("get nothing", "not found"),
        ("rmdir nothing", "No such file"),
        ("mkdir .", "Failure"),
        ("cd nothing/below", "No such file"),
        ("put /etc/hostname nothing/below", "No such file"),
    ] {
        let (ok, text) = sftp(&scratch.0, &format!("{line}\n"));
        assert!(!ok, "{line} succeeded");
        assert!(text.contains(expected), "{line}: {text}");
    }
}

#[test]
fn a_large_directory_is_listed_whole() {
    let scratch = Scratch::new("large");
    for n in 0..1500 {
        fs::write(scratch.join(&format!("file-{n:04}")), b"").unwrap();
    }
    let (ok, text) = sftp(&scratch.0, "ls -1\n");
    assert!(ok, "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("file-")).count(), 1500);
}

#[test]
fn garbage_ends_it_with_a_word() {
    for garbage in [&b"\xff\xff\xff\xff"[..], b"\0\0\0\x05\x11\0\0\0\x01", b"\0\0\0\x01\x01"] {
        let mut server = Command::new(PROGRAM)
            .arg("sftp")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        server.stdin.take().unwrap().write_all(garbage).unwrap();
        let output = server.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stderr.starts_with(b"berth-guest-init: read a request: "));
    }
}
