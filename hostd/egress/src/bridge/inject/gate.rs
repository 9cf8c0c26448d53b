//! The gate before a secret: a request has to be for the host whose TLS it came by.

use crate::bridge::addressee;
use berth_types::egress::HostName;
use hyper::{
    Method, Request, Version,
    header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING},
};

/// Why a request is for somebody else, or for nobody.
pub fn check<B>(request: &Request<B>, name: &HostName, port: u16) -> Result<(), &'static str> {
    let (headers, uri, version) = (request.headers(), request.uri(), request.version());
    if request.method() == Method::CONNECT {
        return Err("CONNECT would hide what is sent");
    }
    if headers.contains_key(CONTENT_LENGTH) && headers.contains_key(TRANSFER_ENCODING)
        || headers.get_all(CONTENT_LENGTH).iter().count() > 1
    {
        return Err("the request has two lengths");
    }
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err("the request has two Host headers");
    }
    let is_ours = |authority: &str| {
        // Mostly it is written as it is in TLS, and need not be read.
        authority == name.as_str()
            || addressee::host(authority)
                .is_some_and(|(host, to)| host == *name && to.is_none_or(|to| to == port))
    };
    match uri.scheme_str() {
        Some(scheme) if !addressee::is_http(scheme) => {
            return Err("the request's address is not one of HTTP");
        }
        None if uri.authority().is_some() => return Err("the request's address has no scheme"),
        _ => {}
    }
    match uri.authority() {
        Some(authority) if !is_ours(authority.as_str()) => {
            return Err("the request's address and its TLS name differ");
        }
        Some(_) => {}
        None if version == Version::HTTP_2 => return Err("the request has no :authority"),
        None => {}
    }
    match host {
        Some(host) if !host.to_str().is_ok_and(is_ours) => Err("the Host header and the TLS name differ"),
        None if version != Version::HTTP_2 => Err("the request has no Host header"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(version: Version, uri: &str, headers: &[(&str, &str)]) -> Result<(), &'static str> {
        let mut request = Request::builder().version(version).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap(), &"api.example".parse().unwrap(), 443)
    }

    #[test]
    fn the_host_has_to_be_that_of_the_tls_name() {
        let one = Version::HTTP_11;
        for good in ["api.example", "API.example", "api.example:443", "api.example."] {
            assert_eq!(judge(one, "/", &[("host", good)]), Ok(()), "{good}");
        }
        assert_eq!(judge(one, "https://api.example/", &[("host", "api.example")]), Ok(()));
        for bad in [
            "evil.example",
            "api.example:8443",
            "api.example:443@evil.example",
            "api.example:evil.example",
            "api.example:65979",
            "x@api.example",
            "api.example.evil",
            "api.example:",
            "",
        ] {
            assert!(judge(one, "/", &[("host", bad)]).is_err(), "{bad}");
        }
        assert!(judge(one, "/", &[]).is_err());
        assert!(judge(one, "/", &[("host", "api.example"), ("host", "evil.example")]).is_err());
        assert!(judge(one, "https://evil.example/", &[("host", "api.example")]).is_err());
        for bad in ["ftp://api.example/", "api.example", "api.example:443", "https://api.example:x/"] {
            assert!(judge(one, bad, &[("host", "api.example")]).is_err(), "{bad}");
        }
        // A path, whatever is in it.
        assert_eq!(judge(one, "/x://evil.example/", &[("host", "api.example")]), Ok(()));
        assert!(judge(one, "/x://api.example/", &[("host", "evil.example")]).is_err());
        let two = [("host", "api.example"), ("content-length", "1"), ("transfer-encoding", "chunked")];
        assert!(judge(one, "/", &two).is_err());
    }

    #[test]
    fn http2_goes_by_its_authority() {
        let two = Version::HTTP_2;
        assert_eq!(judge(two, "https://api.example/", &[]), Ok(()));
        assert!(judge(two, "https://evil.example/", &[]).is_err());
        assert!(judge(two, "https://api.example/", &[("host", "evil.example")]).is_err());
        assert!(judge(two, "/", &[("host", "api.example")]).is_err());
    }
}
