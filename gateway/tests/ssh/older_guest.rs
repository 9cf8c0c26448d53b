//! The gateway and a machine whose guest-init is of version 1, which is the frozen code.

use crate::support::Service;
use berth_guest_protocol::frozen::v1;

#[test]
fn a_machine_with_a_guest_of_version_1_is_used_as_any() {
    let guest = v1::Guest::start();
    let service = Service::with_guest(guest.address);
    let key = service.key("me");
    service.run(&key, &["127.0.0.1", "new", "dev"]);

    let done = service.run(&key, &["dev@127.0.0.1", "make all"]);
    assert_eq!((done.status, done.out.as_str()), (3, "ran make all"), "{done:?}");
    assert!(done.err.contains("variables"), "{done:?}");

    let done = service.run_with_input(&key, &["dev@127.0.0.1", "cat"], b"there and back");
    assert_eq!((done.status, done.out.as_str()), (0, "there and back"), "{done:?}");

    let forward = ["-W", "db:5432", "dev@127.0.0.1"];
    let done = service.run_with_input(&key, &forward, b"through it");
    assert_eq!(done.out, "through it", "{done:?}");
    let target = v1::Open::Connect(v1::Target::Tcp { host: "db".into(), port: 5432 });
    assert!(guest.openings().contains(&target));

    let start = [0, 0, 0, 5, 1, 0, 0, 0, 3];
    let done = service.run_with_input(&key, &["-s", "dev@127.0.0.1", "sftp"], &start);
    assert_eq!(done.bytes, [0, 0, 0, 5, 2, 0, 0, 0, 3], "{done:?}");

    // Each was one connection, and none was refused for what it began with.
    assert_eq!((guest.openings().len(), guest.refused()), (4, 0));
}
