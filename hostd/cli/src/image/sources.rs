//! Where packages come from: wherever this host's own come from.
//!
//! The host's apt knows its mirrors, proxies and keys; nothing of that is named
//! here. A host of another Debian release lends its mirrors, for they carry
//! every release.

use super::{ImageError, recipe::SUITE, tool};
use std::collections::BTreeSet;

/// What the suffix of a release names: the release, its updates, its security fixes.
const POCKETS: &[&str] = &["", "-updates", "-security"];
/// Names of releases that follow the calendar rather than one release.
const ALIASES: &[&str] = &["stable", "oldstable", "oldoldstable", "testing", "unstable", "sid"];
/// What of apt's settings decides whether and how packages are reached.
const SETTINGS: &[&str] =
    &["Acquire::http", "Acquire::https", "Acquire::ftp", "Acquire::Retries", "Acquire::Check-Valid-Until"];

/// Lines of a sources.list for the image's suite, from the host's.
pub fn lines() -> Result<Vec<String>, ImageError> {
    let format = "$(REPO_URI) $(RELEASE) $(COMPONENT)";
    let targets = tool::output(
        "apt-get",
        &["indextargets", "--format", format, "Created-By: Packages", "Target-Of: deb"],
    )?;
    let lines = translate(&targets, &host_codename());
    // Updates and fixes alone install nothing.
    if lines.iter().any(|line| line.contains(&format!(" {SUITE} "))) {
        Ok(lines)
    } else {
        Err(ImageError::NoSources)
    }
}

fn translate(targets: &str, host: &str) -> Vec<String> {
    let mut lines = BTreeSet::new();
    for target in targets.lines() {
        let fields: Vec<&str> = target.split_whitespace().collect();
        let [uri, release, component] = fields.as_slice() else { continue };
        let known = [SUITE, host].into_iter().chain(ALIASES.iter().copied()).filter(|name| !name.is_empty());
        let pocket = known
            .filter_map(|name| release.strip_prefix(name))
            .find_map(|suffix| POCKETS.iter().find(|pocket| **pocket == suffix));
        if let (Some(pocket), "main") = (pocket, *component) {
            lines.insert(format!("deb {} {SUITE}{pocket} {component}", without_userinfo(uri)));
        }
    }
    lines.into_iter().collect()
}

/// The lines end up in every image's sources.list, which every user reads. apt takes a
/// mirror's password from the host's auth.conf instead.
fn without_userinfo(uri: &str) -> String {
    let Some((scheme, rest)) = uri.split_once("://") else { return uri.to_owned() };
    let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// The host's release by name; empty where the host is no Debian.
fn host_codename() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .map(|value| value.trim_matches('"'))
    };
    match (value("ID"), value("VERSION_CODENAME")) {
        (Some("debian"), Some(codename)) => codename.to_owned(),
        _ => String::new(),
    }
}

/// The host's proxies and the like, as lines of an apt.conf.
pub fn settings() -> Result<Vec<String>, ImageError> {
    let dump = tool::output("apt-config", &["dump"])?;
    Ok(dump.lines().filter(|line| is_setting(line)).map(str::to_owned).collect())
}

fn is_setting(line: &str) -> bool {
    SETTINGS
        .iter()
        .filter_map(|name| line.strip_prefix(name))
        .any(|rest| rest.starts_with("::") || rest.starts_with(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_own_release_is_taken_as_it_is() {
        let targets = "http://mirror.test/debian/ bookworm main\n\
                       http://mirror.test/debian/ bookworm-updates main\n\
                       http://mirror.test/security/ bookworm-security main\n\
                       http://mirror.test/debian/ bookworm contrib\n\
                       http://mirror.test/debian/ bookworm-backports main\n\
                       https://vendor.test/apt/ nodistro main\n";
        assert_eq!(
            translate(targets, "bookworm"),
            [
                "deb http://mirror.test/debian/ bookworm main",
                "deb http://mirror.test/debian/ bookworm-updates main",
                "deb http://mirror.test/security/ bookworm-security main",
            ]
        );
    }

    #[test]
    fn another_releases_mirrors_are_asked_for_ours() {
        let targets = "http://m.test/debian/ trixie main\nhttp://m.test/security/ stable-security main\n";
        assert_eq!(
            translate(targets, "trixie"),
            ["deb http://m.test/debian/ bookworm main", "deb http://m.test/security/ bookworm-security main"]
        );
    }

    #[test]
    fn a_mirrors_password_is_in_no_image() {
        let targets = "https://me:p@ss@m.test:8443/debian/ bookworm main\n\
                       http://token@m.test/a@b/ bookworm-security main\n\
                       mirror+http://me:secret@m.test/list bookworm-updates main\n";
        assert_eq!(
            translate(targets, "bookworm"),
            [
                "deb http://m.test/a@b/ bookworm-security main",
                "deb https://m.test:8443/debian/ bookworm main",
                "deb mirror+http://m.test/list bookworm-updates main",
            ]
        );
    }

    #[test]
    fn another_distribution_lends_nothing() {
        assert!(translate("http://m.test/ubuntu/ noble main\n", "").is_empty());
    }

    #[test]
    fn only_what_reaches_packages_is_taken_from_the_hosts_settings() {
        assert!(is_setting("Acquire::http::Proxy \"http://proxy.test:3128\";"));
        assert!(is_setting("Acquire::Check-Valid-Until \"false\";"));
        assert!(!is_setting("Acquire::httpfoo \"1\";"));
        assert!(!is_setting("DPkg::Post-Invoke:: \"rm\";"));
    }
}
