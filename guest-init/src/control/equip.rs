//! What the machine needs to reach the world as its host wants it to: whom to
//! trust, and what stands in commands' environment for secrets it never has.
//!
//! Every file is written only when it differs.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::Path,
    sync::{Mutex, PoisonError, RwLock},
};

use berth_guest_protocol::{AUTHORITY_HASH, Equip};

use crate::{
    boot::{report, write_changed},
    error::{Context, Result},
};

const AUTHORITY: &str = "/etc/berth/authority.pem";
/// That, and whom the host trusts besides.
const EXTRA: &str = "/etc/berth/ca.pem";
/// Where `update-ca-certificates` looks when it makes the bundle anew.
const LOCAL: &str = "/usr/local/share/ca-certificates/berth.crt";
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
const DIRECTORY: &str = "/etc/ssl/certs";
/// Of all users; their own goes first.
const SSH: &str = "/etc/ssh/ssh_known_hosts";
const BEGIN: &str = "# berth: its host's authority, from here";
const END: &str = "# berth: to here";

/// Programs that bring their own certificates are told where the system's are.
const TRUST: [(&str, &str); 7] = [
    ("SSL_CERT_FILE", BUNDLE),
    ("NODE_EXTRA_CA_CERTS", EXTRA),
    ("REQUESTS_CA_BUNDLE", BUNDLE),
    ("CURL_CA_BUNDLE", BUNDLE),
    ("GIT_SSL_CAINFO", BUNDLE),
    ("AWS_CA_BUNDLE", BUNDLE),
    ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", BUNDLE),
];

#[derive(Debug, Default)]
pub struct Equipment {
    /// For every command that is started from now on.
    variables: RwLock<Vec<(String, String)>>,
    /// Whom the files make programs trust already. In memory, so that a resume
    /// reads none of them.
    trusted: Mutex<Option<(String, String)>>,
    /// The same of ssh.
    known: Mutex<Option<String>>,
}

impl Equipment {
    pub fn variables(&self) -> Vec<(String, String)> {
        self.variables.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn take(&self, equip: Equip) {
        let mut trusted = self.trusted.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = (equip.authority, equip.roots);
        if trusted.as_ref() != Some(&wanted) {
            let written = trust(&wanted.0, &wanted.1);
            *trusted = written.is_ok().then_some(wanted);
            // A disk that is full is no reason not to run.
            report(written);
        }
        self.know(equip.known_hosts);
        let trust = TRUST.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let variables = equip.environment.into_iter().chain(trust).collect();
        *self.variables.write().unwrap_or_else(PoisonError::into_inner) = variables;
    }

    /// Where the host answers in a server's place, ssh knows it by these lines.
    fn know(&self, lines: String) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref() != Some(&lines) {
            // Without ssh nobody reads it.
            let has_ssh = Path::new(SSH).parent().is_some_and(Path::exists);
            let written = if has_ssh { write_extra(SSH, &lines) } else { Ok(()) };
            *known = (has_ssh && written.is_ok()).then_some(lines);
            report(written);
        }
    }
}

/// Has the file these lines at its end, and no others that were put there.
fn write_extra(path: &str, extra: &str) -> Result<()> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && extra.is_empty() => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read.during("read", path)?,
    };
    write_changed(path, &with_extra(&text, extra))
}

fn trust(authority: &str, roots: &str) -> Result<()> {
    for path in [AUTHORITY, LOCAL, BUNDLE] {
        if let Some(parent) = Path::new(path).parent() {
            fs::create_dir_all(parent).during("make", parent.display())?;
        }
    }
    let extra = format!("{}\n{roots}", authority.trim_end());
    write_changed(AUTHORITY, authority)?;
    write_changed(LOCAL, authority)?;
    write_changed(EXTRA, &extra)?;
    write_extra(BUNDLE, &extra)?;
    // OpenSSL looks certificates up by the hash of their name.
    let link = format!("{DIRECTORY}/{AUTHORITY_HASH}.0");
    match symlink(AUTHORITY, &link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.during("make", link),
    }
}

/// A bundle with these at its end, and with no others that were put there; as
/// it is where the system's own tool has taken them in.
fn with_extra(text: &str, extra: &str) -> String {
    let mut kept = String::with_capacity(text.len() + extra.len() + 100);
    let mut ours = false;
    for line in text.lines() {
        match line {
            BEGIN => ours = true,
            END => ours = false,
            _ if ours => {}
            _ => {
                kept.push_str(line);
                kept.push('\n');
            }
        }
    }
    let extra = extra.trim_end();
    if extra.is_empty() || kept.contains(extra) { kept } else { format!("{kept}{BEGIN}\n{extra}\n{END}\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    const TWO: &str = "-----BEGIN CERTIFICATE-----\nBBBB\n-----END CERTIFICATE-----\n";
    const THREE: &str = "-----BEGIN CERTIFICATE-----\nCCCC\n-----END CERTIFICATE-----\n";

    #[test]
    fn a_bundle_has_the_authority_once_and_the_right_one() {
        let once = with_extra(ONE, TWO);
        assert!(once.starts_with(ONE) && once.contains(TWO));
        assert_eq!(with_extra(&once, TWO), once, "again changes nothing");
        let other = with_extra(&once, THREE);
        assert!(other.contains(THREE) && !other.contains("BBBB"), "of another host");
        let taken_in = format!("{ONE}{TWO}");
        assert_eq!(with_extra(&taken_in, TWO), taken_in);
        assert!(with_extra("", TWO).contains(TWO));
    }
}
