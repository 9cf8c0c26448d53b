//! The login environment: what sshd and PAM would set on Debian.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
};

use crate::account::Account;

const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games";
const ROOT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub type Variables = Vec<(OsString, OsString)>;

/// In order of precedence, the last one winning: what the host equips the
/// machine with can change nothing that a login needs.
pub fn login(
    account: &Account,
    equipment: Vec<(String, String)>,
    requested: &[(String, String)],
) -> Variables {
    let path = if account.uid == 0 { ROOT_PATH } else { PATH };
    let mut mail = OsString::from("/var/mail/");
    mail.push(&account.name);
    let equipment = equipment.into_iter().filter(|(name, value)| is_valid(name, value));
    let mut variables: Variables = equipment.map(|(name, value)| (name.into(), value.into())).collect();
    let usual = [
        ("HOME", account.home.clone().into_os_string()),
        ("USER", account.name.clone()),
        ("LOGNAME", account.name.clone()),
        ("SHELL", account.shell.clone().into_os_string()),
        ("PATH", path.into()),
        ("MAIL", mail),
    ]
    .map(|(name, value)| (OsString::from(name), value));
    variables.extend(usual);
    variables.extend(parse(&fs::read("/etc/environment").unwrap_or_default()));
    variables.extend(
        requested.iter().filter(|(name, value)| is_valid(name, value)).map(|(n, v)| (n.into(), v.into())),
    );
    variables
}

/// What the kernel could not pass on is left out rather than failing a login.
fn is_valid(name: &str, value: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
}

/// The format of pam_env: `NAME=value`, optional `export`, quotes and comments.
fn parse(text: &[u8]) -> Variables {
    text.split(|&b| b == b'\n')
        .filter_map(|line| {
            let line = line.trim_ascii();
            let line = line.strip_prefix(b"export ").unwrap_or(line).trim_ascii_start();
            let at = line.iter().position(|&b| b == b'=')?;
            let (name, value) = line.split_at_checked(at)?;
            if name.is_empty() || name.starts_with(b"#") || name.contains(&0) || value.contains(&0) {
                return None;
            }
            let value = value.get(1..)?;
            let value = match value {
                [b'"', inner @ .., b'"'] | [b'\'', inner @ .., b'\''] => inner,
                _ => value,
            };
            Some((OsStr::from_bytes(name).to_owned(), OsString::from_vec(value.to_vec())))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_environment_file() {
        let text = b"# a comment=1\nLANG=C.UTF-8\nexport EDITOR=\"nano -w\"\n  A='b c'  \n=x\nnothing\nE=\n";
        let parsed: Vec<(String, String)> = parse(text)
            .into_iter()
            .map(|(n, v)| (n.into_string().unwrap(), v.into_string().unwrap()))
            .collect();
        let expected = [("LANG", "C.UTF-8"), ("EDITOR", "nano -w"), ("A", "b c"), ("E", "")];
        assert_eq!(parsed, expected.map(|(n, v)| (n.to_owned(), v.to_owned())));
    }

    #[test]
    fn what_the_kernel_cannot_pass_is_left_out() {
        assert!(is_valid("LANG", "C"));
        assert!(!is_valid("", "C"));
        assert!(!is_valid("A=B", "C"));
        assert!(!is_valid("A", "C\0"));
    }
}
