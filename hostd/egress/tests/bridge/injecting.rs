//! Each projection, with the real curl.

use crate::support::{Server, VALUE, World, authority::Authority, bearer, guest::Guest, secret};
use base64::{Engine, engine::general_purpose::STANDARD};
use berth_types::{
    MachineId,
    egress::{Projection, SecretValue},
};
use hyper::Version;

#[test]
fn a_header_replaces_the_guests_own_on_both_versions() {
    berth_sys::needs_root!();
    let (mut world, server) = bearer();
    for (flag, version) in [("--http1.1", Version::HTTP_11), ("--http2", Version::HTTP_2)] {
        let ran = world.guest.curl(&[
            flag,
            "-H",
            "Authorization: Bearer mine",
            "-d",
            "hello",
            "https://api.example/x?y=1",
        ]);
        ran.is("200").lacks(VALUE);
        let seen = server.last();
        assert_eq!((seen.version, seen.uri.as_str()), (version, "/x?y=1"));
        let values: Vec<_> = seen.headers.get_all("authorization").iter().collect();
        assert_eq!(values, [&format!("Bearer {VALUE}")]);
        assert_eq!(seen.body, "hello");
        let decision = world.allowed("secret openai");
        assert_eq!((decision.up, decision.host.unwrap().as_str()), (5, "api.example"));
        assert!(decision.down > 0);
    }
}

#[test]
fn rotation_and_removal_take_effect_on_the_next_request() {
    berth_sys::needs_root!();
    let (mut world, server) = bearer();
    let ask = |world: &World| {
        world.guest.curl(&["https://api.example/"]).is("200").lacks(VALUE);
        server.last().headers.get("authorization").map(|value| value.to_str().unwrap().to_owned())
    };
    assert_eq!(ask(&world).unwrap(), format!("Bearer {VALUE}"));
    world.update(|terms| terms.secrets[0].value = SecretValue::new(b"another-value".to_vec()).unwrap());
    assert_eq!(ask(&world).unwrap(), "Bearer another-value");
    world.update(|terms| terms.secrets.clear());
    assert_eq!(ask(&world), None);
}

/// Of what does not happen every time.
const TRIES: usize = 20;

#[test]
fn a_server_is_not_dialled_again_at_once() {
    berth_sys::needs_root!();
    let (mut world, server) = bearer();
    let neighbour = Guest::new(
        world.directory.path(),
        &format!("{}{}", world.settings.authority_certificate, world.public.pem()),
    );
    world.link(&MachineId::random(), &neighbour);
    for (flag, version) in [("--http1.1", Version::HTTP_11), ("--http2", Version::HTTP_2)] {
        // How often the server is connected to for one request.
        let dials = |guest: &Guest| {
            let before = server.connections();
            guest.curl(&[flag, "https://api.example/"]).is("200");
            assert_eq!(server.last().version, version);
            server.connections() - before
        };
        // On a busy host a moment may be over before the next request is made.
        let spared = |guest: &Guest| (0..TRIES).any(|_| dials(guest) == 0);
        assert!(spared(&world.guest));
        // Not for another machine, and not by other rules.
        assert_eq!(dials(&neighbour), 1);
        world.update(|terms| terms.secrets[0].value = SecretValue::new(b"another-value".to_vec()).unwrap());
        assert_eq!(dials(&world.guest), 1);
        assert!(spared(&world.guest));
        assert_eq!(server.last().headers["authorization"], "Bearer another-value");
        world.update(|terms| terms.secrets[0].value = SecretValue::new(VALUE.into()).unwrap());
    }
}

#[test]
fn basic_is_encoded_by_the_host() {
    berth_sys::needs_root!();
    let world = World::new(vec![secret(
        "git",
        &["api.example"],
        vec![Projection::Basic { user: "me".to_owned() }],
        VALUE,
    )]);
    let server = Server::start(&world, "api.example", "198.51.100.10:443");
    let encoded = STANDARD.encode(format!("me:{VALUE}"));
    world.guest.curl(&["-u", "x:y", "https://api.example/"]).is("200").lacks(VALUE).lacks(&encoded);
    assert_eq!(server.last().headers["authorization"], format!("Basic {encoded}"));
}

#[test]
fn a_client_certificate_is_shown_and_only_there() {
    berth_sys::needs_root!();
    let clients = Authority::new("clients");
    let identity = clients.identity("robot");
    let shown = identity.chain[0].to_vec();
    let world = World::new(vec![secret(
        "corp",
        &["api.example:8443"],
        vec![Projection::ClientCertificate],
        &identity.pem,
    )]);
    let server =
        Server::with(&world, "198.51.100.10:8443", world.public.identity("api.example"), Some(&clients));
    world.guest.curl(&["https://api.example:8443/"]).is("200");
    assert_eq!(server.last().client, Some(shown));
    let without = Server::start(&world, "api.example", "198.51.100.10:443");
    world.guest.curl(&["https://api.example/"]).is("200");
    assert_eq!(without.last().client, None);
}

#[test]
fn placeholders_are_replaced_wherever_a_request_has_them() {
    berth_sys::needs_root!();
    let value = r#"sk-"quoted"/and+plus"#;
    let world = World::new(vec![
        secret("STRIPE_KEY", &["api.example"], vec![Projection::Placeholder], value),
        secret("ELSEWHERE", &["other.example"], vec![Projection::Placeholder], "not-for-this-host"),
    ]);
    let server = Server::start(&world, "api.example", "198.51.100.10:443");
    let placeholder = world.placeholder();
    let elsewhere = world.terms.secrets[1].placeholder.clone();
    for version in ["--http1.1", "--http2"] {
        let ran = world.guest.curl(&[
            version,
            "-H",
            &format!("X-Key: k={placeholder};"),
            "-H",
            &format!("X-Elsewhere: {elsewhere}"),
            "-u",
            &format!("{placeholder}:"),
            "-H",
            "Content-Type: application/json",
            "-d",
            &format!("{{\"key\":\"{placeholder}\"}}"),
            &format!("https://api.example/{placeholder}/x?key={placeholder}"),
        ]);
        ran.is("200").lacks(value).has(&placeholder);
        let seen = server.last();
        assert_eq!(seen.headers["x-key"], format!("k={value};"));
        assert_eq!(seen.headers["x-elsewhere"], elsewhere);
        assert_eq!(seen.headers["authorization"], format!("Basic {}", STANDARD.encode(format!("{value}:"))));
        assert_eq!(seen.uri, "/sk-%22quoted%22%2Fand%2Bplus/x?key=sk-%22quoted%22%2Fand%2Bplus");
        assert_eq!(seen.body, r#"{"key":"sk-\"quoted\"/and+plus"}"#);
    }
    let form = format!("key={placeholder}");
    world.guest.curl(&["-d", &form, "https://api.example/"]).is("200");
    assert_eq!(server.last().body, "key=sk-%22quoted%22%2Fand%2Bplus");
    // A body whose length nobody said goes by as it is.
    world
        .guest
        .curl(&["-H", "Transfer-Encoding: chunked", "-d", &form, "--http1.1", "https://api.example/"])
        .is("200");
    assert_eq!(server.last().body, form);
}

#[test]
fn passthrough_leaves_tls_closed() {
    berth_sys::needs_root!();
    let (mut world, server) = bearer();
    world.update(|terms| terms.policy.passthrough = vec!["api.example".parse().unwrap()]);
    world.guest.curl(&["-H", "Authorization: Bearer mine", "https://api.example/"]).is("200");
    assert_eq!(server.last().headers["authorization"], "Bearer mine");
}
