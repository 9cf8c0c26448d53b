use super::*;
use crate::scratch::Scratch;
use rustix::fs::{CWD, mkfifoat};
use std::{
    fs,
    io::Write as _,
    os::unix::fs::{PermissionsExt as _, symlink},
};

const OWN: Expected = Expected::of(Owner::Own).at_most(1 << 20);

fn why(result: io::Result<impl std::fmt::Debug>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn only_a_regular_file_of_ones_own_is_opened() {
    let scratch = Scratch::new();
    let (place, outside) = (scratch.path().join("place"), scratch.path().join("outside"));
    fs::create_dir(&place).unwrap();
    fs::write(&outside, "secret").unwrap();
    let directory = Directory::open(&place).unwrap();
    let try_to = |name: &str| {
        let read = why(directory.read(name, OWN));
        assert_eq!(why(directory.file(name, Access::Write, OWN)), read, "{name}");
        read
    };
    symlink(&outside, place.join("link")).unwrap();
    assert_eq!(try_to("link"), "it is a symbolic link");
    symlink("nowhere", place.join("dangling")).unwrap();
    assert_eq!(try_to("dangling"), "it is a symbolic link");
    fs::create_dir(place.join("directory")).unwrap();
    assert!(directory.file("directory", Access::Write, OWN).is_err());
    assert_eq!(why(directory.read("directory", OWN)), "it is a directory");
    fs::hard_link(&outside, place.join("second")).unwrap();
    assert_eq!(try_to("second"), "it has 2 names");
    fs::File::create(place.join("giant")).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(try_to("giant"), "it has 1099511627776 bytes, and 1048576 are the most");
    let _listener = std::os::unix::net::UnixListener::bind(place.join("socket")).unwrap();
    assert_eq!(try_to("socket"), "it is a FIFO or a socket");
    assert!(directory.read("../outside", OWN).is_err());
    assert!(directory.read("..", OWN).is_err() && directory.read("", OWN).is_err());
    fs::write(place.join("file"), "text").unwrap();
    assert_eq!(directory.read("file", OWN).unwrap(), b"text");
    assert_eq!(fs::read_to_string(outside).unwrap(), "secret");
}

#[test]
fn a_fifo_does_not_block() {
    let scratch = Scratch::new();
    mkfifoat(CWD, scratch.path().join("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
    let directory = Directory::open(scratch.path()).unwrap();
    for access in [Access::Read, Access::Write, Access::Both, Access::Append] {
        let refused = why(directory.file("fifo", access, OWN));
        assert!(refused.starts_with("it is a FIFO"), "{refused}");
    }
}

#[test]
fn a_strangers_file_is_not_opened() {
    crate::needs_root!();
    let scratch = Scratch::new();
    let directory = Directory::open(scratch.path()).unwrap();
    give(&directory.create("file").unwrap(), 12_345).unwrap();
    assert_eq!(why(directory.file("file", Access::Read, OWN)), "it belongs to uid 12345");
    assert!(directory.file("file", Access::Read, Expected::of(Owner::OwnOr(12_346))).is_err());
    assert!(directory.file("file", Access::Read, Expected::of(Owner::OwnOr(12_345))).is_ok());
    assert!(directory.file("file", Access::Read, Expected::of(Owner::Anyone)).is_ok());
}

#[test]
fn a_new_file_takes_the_place_of_a_link_and_not_of_what_it_leads_to() {
    let scratch = Scratch::new();
    let outside = scratch.path().join("outside");
    fs::write(&outside, "secret").unwrap();
    let directory = Directory::open(scratch.path()).unwrap().make("place", 0o710).unwrap();
    assert_eq!(directory.stat().unwrap().st_mode & 0o777, 0o710);
    symlink(&outside, directory.path().join("file")).unwrap();
    directory.create("file").unwrap().write_all(b"new").unwrap();
    assert_eq!(directory.read("file", OWN).unwrap(), b"new");
    assert_eq!(fs::read_to_string(outside).unwrap(), "secret");
    let mode = fs::metadata(directory.path().join("file")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn what_is_renamed_or_removed_is_the_name_itself() {
    let scratch = Scratch::new();
    let outside = scratch.path().join("outside");
    fs::write(&outside, "secret").unwrap();
    let parent = Directory::open(scratch.path()).unwrap();
    let (one, other) = (parent.make("one", 0o700).unwrap(), parent.make("other", 0o700).unwrap());
    symlink(&outside, one.path().join("link")).unwrap();
    one.rename("link", &other, "moved").unwrap();
    assert!(!one.has("link") && !other.has("moved") && other.look("moved").unwrap().is_some());
    other.remove_all("moved").unwrap();
    other.remove("moved").unwrap();
    assert!(one.rename("../outside", &other, "stolen").is_err());
    assert_eq!(fs::read_to_string(outside).unwrap(), "secret");
}

#[test]
fn a_tree_of_any_depth_is_removed_and_nothing_beside_it() {
    let scratch = Scratch::new();
    let outside = scratch.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "").unwrap();
    let directory = Directory::open(scratch.path()).unwrap();
    // Deeper than a stack or a table of descriptors.
    let mut inner = directory.make("tree", 0o700).unwrap();
    for _ in 0..2000 {
        inner.create("file").unwrap();
        symlink(&outside, Path::new("/proc/self/fd").join(fd(&inner)).join("link")).unwrap();
        inner = inner.make("deeper", 0o700).unwrap();
        inner.path = PathBuf::new();
    }
    directory.remove_all("tree").unwrap();
    assert!(directory.look("tree").unwrap().is_none());
    assert!(outside.join("kept").exists());
}

fn fd(directory: &Directory) -> String {
    use std::os::fd::AsRawFd as _;
    directory.fd.as_raw_fd().to_string()
}
