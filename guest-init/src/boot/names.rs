//! What the machine calls itself, and whom it asks for the names of others.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

use berth_guest_protocol::ETH_HOST_ADDRESS;

use super::report;
use crate::error::{Context, Error, Result};

const HOSTNAME: &str = "/etc/hostname";
const HOSTS: &str = "/etc/hosts";
const RESOLV: &str = "/etc/resolv.conf";
const OURS: &str = "# Written by berth at every start; remove this line to keep your own.";
const OWN_ADDRESS: &str = "127.0.1.1";

pub fn set_up() {
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let given = line.split_whitespace().find_map(|word| word.strip_prefix("berth.hostname="));
    let kept = fs::read_to_string(HOSTNAME).unwrap_or_default();
    let name = given.unwrap_or_else(|| kept.trim());
    if !name.is_empty() {
        report(set_hostname(name, write_changed));
    }
    let resolv = fs::read_to_string(RESOLV);
    if resolv.as_ref().map_or(true, |text| text.trim().is_empty() || text.lines().any(|line| line == OURS)) {
        let [a, b, c, d] = ETH_HOST_ADDRESS;
        report(write_changed(RESOLV, &format!("{OURS}\nnameserver {a}.{b}.{c}.{d}\n")));
    }
}

/// How a file gets its new text.
pub type Write = fn(&str, &str) -> Result<()>;

/// The kernel's name must be right; the files follow if the disk lets them.
pub fn set_hostname(name: &str, write: Write) -> Result<()> {
    if !is_hostname(name) {
        return Err(Error::new("use the hostname", name.escape_debug(), io::ErrorKind::InvalidInput.into()));
    }
    rustix::system::sethostname(name.as_bytes()).during("set the hostname", name)?;
    report(write(HOSTNAME, &format!("{name}\n")));
    report(write(HOSTS, &hosts(&fs::read_to_string(HOSTS).unwrap_or_default(), name)));
    Ok(())
}

fn is_hostname(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'))
}

/// The user's own lines stay; the one for the machine's name is set.
fn hosts(text: &str, name: &str) -> String {
    let is_own = |line: &str| line.split_whitespace().next() == Some(OWN_ADDRESS);
    let mut lines: Vec<String> = text.lines().filter(|line| !is_own(line)).map(str::to_owned).collect();
    if !lines.iter().any(|line| line.split_whitespace().skip(1).any(|word| word == "localhost")) {
        lines.insert(0, "127.0.0.1\tlocalhost".to_owned());
    }
    let after = lines.iter().position(|line| line.starts_with("127.0.0.1")).map_or(0, |at| at + 1);
    lines.insert(after.min(lines.len()), format!("{OWN_ADDRESS}\t{name}"));
    lines.join("\n") + "\n"
}

/// Replaced in one step, and only when it differs: a full disk keeps the old.
pub fn write_changed(path: &str, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let beside = format!("{path}.berth");
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    if written.is_err() && Path::new(&beside).exists() {
        let _ = fs::remove_file(&beside);
    }
    written.during("write", path)
}

/// The same in place, which only a machine that stands still does not see: it
/// takes no block, so a full disk lets it, and a fraction of the time.
pub fn overwrite(path: &str, text: &str) -> Result<()> {
    let written = || -> io::Result<()> {
        let file = File::options().write(true).create(true).truncate(false).open(path)?;
        file.write_all_at(text.as_bytes(), 0)?;
        let length = text.len() as u64;
        if file.metadata()?.len() > length { file.set_len(length) } else { Ok(()) }
    };
    written().during("write", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_text_leaves_nothing_of_a_longer_one() {
        let path = std::env::temp_dir().join(format!("berth-overwrite-{}", std::process::id()));
        let name = path.to_str().unwrap();
        for text in ["longer\n", "short\n", "", "longer again\n"] {
            overwrite(name, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn only_the_own_line_of_hosts_changes() {
        let text = "127.0.0.1 localhost\n127.0.1.1 old\n::1 ip6-localhost\n10.0.0.1 db\n";
        let expected = "127.0.0.1 localhost\n127.0.1.1\tnew\n::1 ip6-localhost\n10.0.0.1 db\n";
        assert_eq!(hosts(text, "new"), expected);
        assert_eq!(hosts(expected, "new"), expected);
        assert_eq!(hosts("", "m"), "127.0.0.1\tlocalhost\n127.0.1.1\tm\n");
    }

    #[test]
    fn a_hostname_is_one() {
        assert!(is_hostname("dev-1"));
        for bad in ["", "a b", "a\n127.0.0.1 x", &"x".repeat(65)] {
            assert!(!is_hostname(bad), "{bad:?}");
        }
    }
}
