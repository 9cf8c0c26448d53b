//! Whom a request is for, read as strictly as where it matters most.
//!
//! The name decides what an allowlist lets pass and where a secret goes, so that what
//! servers could read in two ways names no host.

use berth_types::egress::HostName;

/// `NAME` or `NAME:PORT`, as in a Host header, and nothing else: no credentials before
/// it, no port that is no number, for servers differ in where the name ends then.
pub fn host(text: &str) -> Option<(HostName, Option<u16>)> {
    let Some((name, port)) = text.split_once(':') else { return Some((text.parse().ok()?, None)) };
    let port = port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse().ok())??;
    Some((name.parse().ok()?, Some(port)))
}

/// Has an address this scheme? Others than these are not for servers of HTTP.
pub fn is_http(scheme: &str) -> bool {
    ["http", "https"].iter().any(|http| scheme.eq_ignore_ascii_case(http))
}

/// The name that a request is for, by its target and its Host headers; nothing if there is
/// none, one that cannot be read, or more than one.
pub fn named<'a>(
    method: &str,
    target: &str,
    mut hosts: impl Iterator<Item = Option<&'a str>>,
) -> Option<HostName> {
    let name = |text: &str| host(text).map(|(name, _)| name);
    let (first, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return None;
    }
    let of_header = first.map(|text| text.and_then(name));
    match authority(method, target)? {
        // RFC 9112 has servers go by the target, and some go by the header all the same.
        Some(authority) => {
            let of_target = name(authority)?;
            let needs_none = method == "CONNECT";
            let agrees = of_header.map_or(needs_none, |header| header.as_ref() == Some(&of_target));
            agrees.then_some(of_target)
        }
        None => of_header.flatten(),
    }
}

/// The part of a target that names a host. A path has none, whatever is in it; what is
/// neither a path nor an address of HTTP is no target.
#[allow(clippy::option_option, reason = "no target is not a target without a host")]
fn authority<'a>(method: &str, target: &'a str) -> Option<Option<&'a str>> {
    if method == "CONNECT" {
        return Some(Some(target));
    }
    if target.starts_with('/') || target == "*" && method == "OPTIONS" {
        return Some(None);
    }
    let (scheme, rest) = target.split_once("://")?;
    is_http(scheme).then(|| rest.split(['/', '?', '#']).next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_a_name_and_perhaps_a_port() {
        for (text, port) in [
            ("a.example", None),
            ("A.example.", None),
            ("a.example:80", Some(80)),
            ("a.example.:443", Some(443)),
        ] {
            assert_eq!(host(text), Some(("a.example".parse().unwrap(), port)), "{text}");
        }
        for text in [
            "",
            ":80",
            "a.example:",
            "a.example:+80",
            "a.example: 80",
            "a.example:65536",
            "a.example:80:80",
            "a.example:80@b.example",
            "a.example:b.example",
            "x@a.example",
            "x:y@a.example",
            "a.example b.example",
            "a.example,b.example",
            "a.example\\b.example",
            "a.example%00",
            "a.example..",
            "\u{ff41}.example",
            "192.0.2.1",
            "[2001:db8::1]",
        ] {
            assert_eq!(host(text), None, "{text}");
        }
    }

    #[test]
    fn a_request_names_one_host_or_none() {
        let of = |method: &str, target: &str, hosts: &[&str]| {
            named(method, target, hosts.iter().map(|host| Some(*host))).map(String::from)
        };
        let a = Some("a.example".to_owned());
        for (method, target, hosts) in [
            ("GET", "/", &["a.example"][..]),
            ("GET", "/x://b.example/", &["a.example"]),
            ("GET", "//b.example/", &["a.example:80"]),
            ("GET", "/?to=http://b.example/", &["A.Example"]),
            ("GET", "http://a.example/x", &["a.example"]),
            ("GET", "HTTP://A.example:80?x=http://b.example/", &["a.example"]),
            ("GET", "https://a.example#@b.example/", &["a.example."]),
            ("OPTIONS", "*", &["a.example"]),
            ("CONNECT", "a.example:443", &[]),
            ("CONNECT", "a.example:443", &["a.example:443"]),
        ] {
            assert_eq!(of(method, target, hosts), a, "{method} {target} {hosts:?}");
        }
        for (method, target, hosts) in [
            ("GET", "/", &[][..]),
            ("GET", "/x://a.example/", &[]),
            ("GET", "http://a.example/", &[]),
            ("GET", "http://a.example/", &["b.example"]),
            ("GET", "http://b.example/", &["a.example"]),
            ("GET", "http://a.example/", &["192.0.2.1"]),
            ("GET", "http://a.example:80@b.example/", &["a.example"]),
            ("GET", "http://a.example@b.example/", &["a.example"]),
            ("GET", "http://b.example\\@a.example/", &["a.example"]),
            ("GET", "http:///a.example/", &["a.example"]),
            ("GET", "http:/a.example/", &["a.example"]),
            ("GET", "http:a.example", &["a.example"]),
            ("GET", "x://a.example/", &["a.example"]),
            ("GET", "://a.example/", &["a.example"]),
            ("GET", "ht tp://a.example/", &["a.example"]),
            ("GET", "xhttp://a.example/", &["a.example"]),
            ("GET", "a.example/", &["a.example"]),
            ("GET", "*", &["a.example"]),
            ("GET", "", &["a.example"]),
            ("GET", "/", &["a.example", "a.example"]),
            ("GET", "/", &["a.example", "b.example"]),
            ("GET", "/", &["a.example:80@b.example"]),
            ("CONNECT", "http://a.example/", &["a.example"]),
            ("CONNECT", "a.example:443", &["b.example"]),
        ] {
            assert_eq!(of(method, target, hosts), None, "{method} {target} {hosts:?}");
        }
        assert_eq!(named("GET", "/", [None].into_iter()), None, "a header that is no text");
    }
}
