//! The resolver: rebinding, floods, and what is not told.

use crate::support::{VALUE, World, header, secret};
use berth_egress::control::{Outcome, Protocol};
use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{Name, RData, Record, RecordType, rdata::A},
};
use std::{
    net::{Ipv4Addr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// The host's resolver in this world. `rebind.example` changes its mind.
fn resolver(world: &World) -> Arc<AtomicUsize> {
    let socket = world.servers.datagrams(([198, 51, 100, 19], 53).into());
    socket.set_nonblocking(false).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    std::thread::spawn(move || {
        let mut buffer = [0u8; 1024];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let question = Message::from_vec(&buffer[..length]).unwrap();
            let query = question.queries[0].clone();
            let number = count.fetch_add(1, Ordering::Relaxed);
            let mut answer = Message::new(question.metadata.id, MessageType::Response, OpCode::Query);
            let address = match query.name().to_ascii().as_str() {
                "rebind.example." if number == 0 => Some(Ipv4Addr::new(198, 51, 100, 11)),
                "rebind.example." | "local.example." => Some(Ipv4Addr::LOCALHOST),
                "metadata.example." => Some(Ipv4Addr::new(169, 254, 169, 254)),
                "host.example." => Some(Ipv4Addr::new(198, 51, 100, 1)),
                "machine.example." => Some(Ipv4Addr::new(10, 77, 0, 2)),
                "private.example." => Some(Ipv4Addr::new(10, 1, 2, 3)),
                name if name.starts_with("www.") => Some(Ipv4Addr::new(198, 51, 100, 11)),
                _ => None,
            };
            answer.add_query(query.clone());
            match address {
                Some(address) => {
                    answer.add_answer(Record::from_rdata(query.name().clone(), 1, RData::A(A(address))));
                }
                None => answer.metadata.response_code = ResponseCode::NXDomain,
            }
            let _ = socket.send_to(&answer.to_vec().unwrap(), from);
        }
    });
    asked
}

fn question(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(9, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message.to_vec().unwrap()
}

fn socket(world: &World) -> UdpSocket {
    let socket = world.guest.namespace.datagrams(([10, 77, 0, 2], 0).into());
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    world.guest.namespace.run(|| socket.connect("192.0.2.53:53").unwrap());
    socket
}

fn ask(socket: &UdpSocket, name: &str, kind: RecordType) -> Message {
    socket.send(&question(name, kind)).unwrap();
    let mut buffer = [0u8; 1024];
    let length = socket.recv(&mut buffer).unwrap();
    Message::from_vec(&buffer[..length]).unwrap()
}

const LINK: &str = "an address of the machine's own link";

#[test]
fn addresses_that_are_refused_are_not_even_told() {
    berth_sys::needs_root!();
    let mut world =
        World::new(vec![secret("openai", &["rebind.example"], vec![header("x-key", "{}")], VALUE)]);
    let asked = resolver(&world);
    let socket = socket(&world);
    assert_eq!(ask(&socket, "rebind.example.", RecordType::A).answers.len(), 1);
    // The answer ends after a second; then the name leads to the host itself.
    std::thread::sleep(Duration::from_millis(1100));
    for (name, rule) in [
        ("rebind.example.", "a loopback address"),
        ("local.example.", "a loopback address"),
        ("metadata.example.", "a link-local address"),
        ("host.example.", "an address of the host"),
        ("machine.example.", LINK),
        ("private.example.", "a private address"),
    ] {
        let answer = ask(&socket, name, RecordType::A);
        assert_eq!(
            (answer.answers.len(), answer.metadata.response_code),
            (0, ResponseCode::NXDomain),
            "{name}"
        );
        assert_eq!(world.refused(rule).protocol, Protocol::Dns);
    }
    // And connecting there by address is no better.
    for (address, rule) in [
        ("10.77.0.3", LINK),
        ("169.254.169.254", "a link-local address"),
        ("198.51.100.1", "an address of the host"),
    ] {
        let ran = world.guest.curl(&[
            "-k",
            "--resolve",
            &format!("rebind.example:443:{address}"),
            "https://rebind.example/",
        ]);
        assert_ne!(ran.status, 0);
        world.refused(rule);
    }
    assert_eq!(
        ask(&socket, "nowhere.example.", RecordType::A).metadata.response_code,
        ResponseCode::NXDomain
    );
    let before = asked.load(Ordering::Relaxed);
    // Allowed by address, it is told.
    world.update(|terms| terms.policy.allow = vec!["10.0.0.0/8:5432".parse().unwrap()]);
    assert_eq!(ask(&socket, "private.example.", RecordType::A).answers.len(), 1);
    // Only addresses are looked up; other questions leave nothing.
    for kind in [RecordType::AAAA, RecordType::TXT, RecordType::MX, RecordType::HTTPS] {
        let answer = ask(&socket, "www.a.example.", kind);
        assert_eq!((answer.answers.len(), answer.metadata.response_code), (0, ResponseCode::NoError));
    }
    assert_eq!(asked.load(Ordering::Relaxed), before + 1);
    // What is on the machine's link stays refused, whatever a rule allows.
    // The reset may be there before the connection is seen to be made.
    drop(world.guest.connect("10.77.0.3:5432"));
    world.refused(LINK);
}

#[test]
fn a_flood_of_questions_is_dropped_and_others_are_served() {
    berth_sys::needs_root!();
    let mut world = World::with(Vec::new(), |settings| settings.limits.dns_per_second = 50);
    let asked = resolver(&world);
    let neighbour = crate::support::guest::Guest::new(world.directory.path(), &world.public.pem());
    world.link(&berth_types::MachineId::random(), &neighbour);
    let socket = socket(&world);
    let start = Instant::now();
    for number in 0..20_000 {
        let _ = socket.send(&question(&format!("www.{number}.example."), RecordType::A));
    }
    // Garbage costs nobody anything.
    for length in 0..200 {
        let _ = socket.send(&vec![0xff; length]);
    }
    let ran = neighbour.run("getent", &["ahostsv4", "www.neighbour.example"]);
    assert!(ran.out.contains("198.51.100.11"), "{ran:?}");
    let seconds = usize::try_from(start.elapsed().as_secs()).unwrap() + 2;
    assert!(
        asked.load(Ordering::Relaxed) <= 50 * seconds + 1,
        "{} in {seconds} s",
        asked.load(Ordering::Relaxed)
    );
    let decision = world.decision(|decision| decision.rule == "limit dns_per_second 50");
    assert_eq!(decision.verdict, Outcome::Refused);
}

#[test]
fn tcp_and_clients_of_the_system_work() {
    berth_sys::needs_root!();
    let world = World::new(Vec::new());
    let _asked = resolver(&world);
    let ran = world.guest.run("getent", &["ahostsv4", "api.example"]);
    assert!(ran.out.contains("198.51.100.10"), "{ran:?}");
    use std::io::{Read, Write};
    let mut stream = world.guest.connect("192.0.2.53:53").unwrap();
    let bytes = question("www.a.example.", RecordType::A);
    stream.write_all(&u16::try_from(bytes.len()).unwrap().to_be_bytes()).unwrap();
    stream.write_all(&bytes).unwrap();
    let mut length = [0u8; 2];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(Message::from_vec(&answer).unwrap().answers.len(), 1);
}
