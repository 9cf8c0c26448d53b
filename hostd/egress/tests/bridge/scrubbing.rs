//! A server that sends the credential back.

use crate::support::{VALUE, World, bearer};

#[test]
fn the_value_never_comes_back() {
    berth_sys::needs_root!();
    let (mut world, server) = bearer();
    let placeholder = world.placeholder();
    for version in ["--http1.1", "--http2"] {
        for path in ["/plain", "/header", "/gzip", "/pieces", "/events", "/escaped", "/lines"] {
            let ran =
                world.guest.curl(&[version, "-i", "--compressed", &format!("https://api.example{path}")]);
            ran.is("200").lacks(VALUE).has(&placeholder);
            // Once for the answer, however often it was in it; never the value.
            assert!(world.allowed("secret openai").reason.contains("taken out"), "{path}");
        }
        world.guest.curl(&[version, "-o", "/dev/null", "https://api.example/large"]).is("200");
        assert_eq!(world.allowed("secret openai").reason, "", "nothing was taken out");
        // Formats that count bytes keep their length.
        let ran = world.guest.curl(&[version, "-i", "https://api.example/binary"]);
        ran.is("200").lacks(VALUE).has("content-length:").has(&placeholder[..VALUE.len()]);
        let ran = world.guest.curl(&[version, "-I", "https://api.example/header"]);
        ran.is("200").lacks(VALUE).has(&placeholder);
        // What cannot be read is not passed on.
        let ran = world.guest.curl(&[version, "https://api.example/brotli"]);
        ran.is("403").lacks(VALUE).has("secret openai").has("br");
        assert!(world.refused("secret openai").reason.contains("encoded as br"));
    }
    assert!(server.seen().iter().all(|seen| seen.headers["accept-encoding"] == "identity"));
}

#[test]
fn events_are_not_held_back_and_large_bodies_not_kept() {
    berth_sys::needs_root!();
    let (world, _server) = bearer();
    // Three events 0.4 s apart: the first has to be there long before the end.
    let script =
        "curl -sSN https://api.example/events | while read -r line; do [ -n \"$line\" ] && date +%s%N; done";
    let ran = world.guest.run("sh", &["-c", script]);
    let times: Vec<u64> = ran.out.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(times.len(), 3, "{ran:?}");
    assert!(times[2] - times[0] > 500_000_000, "{times:?}");
    let memory = |world: &World| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", world.bridge_pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = memory(&world);
    for _ in 0..4 {
        let ran = world.guest.curl(&[
            "-o",
            "/dev/null",
            "-w",
            "%{size_download} %{http_code}",
            "https://api.example/large",
        ]);
        assert_eq!(ran.out, "8388608 200");
    }
    assert!(memory(&world) - before < 4096, "an 8 MiB body was kept");
}

#[test]
fn a_server_is_not_asked_for_a_part_of_an_answer() {
    berth_sys::needs_root!();
    let (world, server) = bearer();
    for version in ["--http1.1", "--http2"] {
        let ran =
            world.guest.curl(&[version, "-r", "0-40", "-H", "If-Range: \"x\"", "https://api.example/plain"]);
        ran.is("200").lacks(VALUE).has(&world.placeholder());
        let headers = server.last().headers;
        assert!(!headers.contains_key("range") && !headers.contains_key("if-range"), "{headers:?}");
    }
}
