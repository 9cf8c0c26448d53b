//! Guests of every version: what hostd tells them, and that it costs them nothing.

use super::{Scratch, World, guests::Manners, named, recovery::life};
use crate::{
    guest::{self, Control, Heard},
    net::Link,
};
use berth_api::Request;
use berth_guest_protocol::{Equip, Version, encode, frozen::v1};
use berth_types::{ByteSize, Machine, Size, State, UserId};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

fn machine() -> Machine {
    let size = Size { cpus: 1, memory: ByteSize::mib(128), disk: ByteSize::mib(1) };
    Machine::new(UserId::random(), named("dev"), "debian".into(), size)
}

fn equipment() -> Equip {
    Equip {
        authority: "pem".into(),
        roots: "x".into(),
        environment: vec![("A".into(), "b".into())],
        known_hosts: "git.example KEY\n".into(),
    }
}

/// What a guest of version 1 understands of that.
fn as_it_was() -> v1::Control {
    let known_hosts = (v1::KNOWN_HOSTS.into(), "git.example KEY\n".into());
    let environment = vec![("A".into(), "b".into()), known_hosts];
    v1::Control::Equip(v1::Equip { authority: "pem".into(), roots: "x".into(), environment })
}

async fn repaired(link: &Link, heard: &Heard) -> Control {
    Control::when_repaired(link, &machine(), Some(equipment()), heard, LIMIT).await.unwrap()
}

#[tokio::test]
async fn a_guest_of_version_1_is_driven_through_its_life() {
    let old = v1::Guest::start();
    let (link, heard) = (Link::Loopback(old.address), Heard::default());
    let mut control = repaired(&link, &heard).await;
    assert_eq!(heard.version(), Some(Version::ONE));
    assert_eq!(control.vitals(LIMIT).await.unwrap().disk_total, v1::vitals().disk_total);
    let mut control = Control::frozen(Some(control), &link, true, LIMIT).await.unwrap();
    control.go_on(&machine(), LIMIT).await.unwrap();
    control.equip(equipment(), LIMIT).await.unwrap();
    // All of that took one connection, and nothing was said that it did not understand.
    assert_eq!((old.openings(), old.refused()), (vec![v1::Open::Control], 0));
    let asked = old.requests();
    let repair = |at: usize| match &asked[at] {
        v1::Control::Repair(repair) => (repair.hostname.clone(), repair.disk, repair.clock > 0),
        other => panic!("{other:?}"),
    };
    assert_eq!(asked[0], as_it_was(), "before the repair");
    assert_eq!(repair(1), ("dev".to_owned(), 1 << 20, true));
    assert_eq!(asked[2..5], [v1::Control::Vitals, v1::Control::Rehearse, v1::Control::Freeze]);
    assert_eq!(repair(5), repair(1));
    assert_eq!(asked[6..], [as_it_was()]);
    control.part().await;

    // On connections of their own, of which what was heard does not matter.
    guest::equip_again(&link, equipment).await;
    assert_eq!(old.requests()[7], as_it_was());
    let control = Control::frozen(None, &link, false, LIMIT).await.unwrap();
    assert_eq!(old.requests()[8], v1::Control::Freeze);
    let mut control = Control::frozen(Some(control), &link, false, LIMIT).await.unwrap();
    control.shut_down().await.unwrap();
    guest::run(&link, "true", LIMIT).await.unwrap();
    let exec = v1::Exec { command: v1::Command::Line(b"true".into()), env: Vec::new(), pty: None };
    assert_eq!(old.openings().last(), Some(&v1::Open::Exec(exec)));
    let told = old.requests();
    assert_eq!(told[told.len() - 1], v1::Control::Shutdown(v1::Shutdown::PowerOff));
    assert_eq!(old.refused(), 0);
}

/// A memory can only be another's than its manifest says if that is wrong. Then it costs
/// one attempt.
#[tokio::test]
async fn what_was_heard_of_another_guest_is_forgotten() {
    let old = v1::Guest::start();
    let (link, heard) = (Link::Loopback(old.address), Heard::new(Some(2)));
    repaired(&link, &heard).await;
    assert_eq!((old.refused(), old.openings().len()), (1, 1));
    assert_eq!((heard.version(), &old.requests()[0]), (Some(Version::ONE), &as_it_was()));
    repaired(&link, &heard).await;
    assert_eq!(old.refused(), 1);
}

/// What the first connection of a start was told: the opening, and all requests.
fn first(world: &World) -> Vec<Vec<u8>> {
    world.guests.heard().swap_remove(0)
}

#[tokio::test]
async fn a_machine_with_a_guest_of_version_1_sleeps_and_wakes_as_ever() {
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    world.guests.behave(Manners::Old);
    let machine = world.new_machine("dev").await.unwrap();
    for _ in 0..2 {
        world.ask(Request::Sleep { name: named("dev") }).await.unwrap();
        world.guests.heard();
        world.ask(Request::Attach { name: named("dev") }).await.unwrap();
        assert_eq!(machine.record().state, State::Running);
        // The first that is said is understood; nothing is said twice.
        let said = first(&world);
        assert_eq!(said[0], [0x81, 0x00, 0x00]);
        assert!(matches!(v1::decode(&said[1]), Ok(v1::Control::Equip(_))));
        assert!(matches!(v1::decode(&said[2]), Ok(v1::Control::Repair(_))));
    }
    let slept = world.host.archive.of(machine.id());
    assert!(slept.iter().all(|one| one.guest == Some(1)), "{slept:?}");
}

#[test]
fn a_guest_that_was_heard_is_told_what_is_new_when_it_wakes() {
    let scratch = Scratch::new();
    life(async || {
        let world = World::open(&scratch).await;
        world.new_machine("dev").await.unwrap();
        let said = first(&world);
        assert_eq!(said[0], [0x81, 0x00, 0x00], "at first it is not known");
        world.ask(Request::Sleep { name: named("dev") }).await.unwrap();
        let slept = world.host.archive.of(world.machine("dev").id());
        assert_eq!(slept[0].guest, Some(2));
    });
    // Another hostd finds it written down.
    life(async || {
        let world = World::open(&scratch).await;
        world.ask(Request::Attach { name: named("dev") }).await.unwrap();
        let said = first(&world);
        assert_eq!(said[0], [0x02, 0x00]);
        let record = world.machine("dev").record().clone();
        let equip = crate::egress::equipment(&world.host, &record);
        let frame = encode(Version::TWO, &berth_guest_protocol::Control::Equip(equip)).unwrap();
        assert_eq!(said[1], frame[berth_guest_protocol::HEADER..]);
        // After a capture too, and in what is made of it.
        world
            .ask(Request::Snapshot { name: named("dev"), label: Some("one".parse().unwrap()) })
            .await
            .unwrap();
        let point = world.host.archive.point(&record.id, &"one".parse().unwrap()).unwrap();
        assert_eq!(point.guest, Some(2));
    });
}
