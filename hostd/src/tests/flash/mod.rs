//! The power fails at random moments while machines are made, written to, put to sleep,
//! woken, copied, restored and removed. hostd starts on what the disk had at each of them.
//!
//! Guests are acted: what is written to a machine's disk is synced, as a guest's `fsync`
//! syncs it, and its memory is a number on every page that nothing syncs but berth.

mod disk;
mod model;

use super::{Scratch, World, named, recovery::life, spec};
use berth_api::Request;
use berth_types::{Label, LostKind, Point, Refusal, State, Why};
use disk::Disk;
use model::{Expected, Model};
use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Moments in `make test`.
const MOMENTS: u32 = 40;
/// How many times as many there may be until one of them has a machine to resume.
const MORE: u32 = 10;
/// Moments in one life of the hostd whose power is cut.
const LIFE: u32 = 25;
/// Pages of a guest's memory that are looked at, and how far they are apart.
const PAGES: u64 = 64;
const APART: u64 = 1 << 20;

/// Numbers that need not be good.
struct Dice(u64);

impl Dice {
    fn new() -> Self {
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).unwrap();
        Self(u64::from_ne_bytes(seed) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn number(file: &Path) -> u64 {
    let mut bytes = [0; 8];
    File::open(file).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    u64::from_ne_bytes(bytes)
}

fn directory(world: &World, name: &str) -> std::path::PathBuf {
    world.host.storage.directory(world.machine(name).id())
}

/// One machine, and what its user does.
struct Player<'a> {
    world: &'a World,
    model: &'a Model,
    name: String,
    dice: Dice,
    value: u64,
    snapshots: Vec<(String, u64)>,
}

impl Player<'_> {
    async fn ask(&self, request: Request) -> Result<(), Refusal> {
        self.world.ask(request).await.map(drop)
    }

    async fn wake(&self) {
        self.ask(Request::Attach { name: named(&self.name) }).await.unwrap();
    }

    /// As a guest that writes a file, syncs it, and uses its memory.
    fn write(&mut self) {
        let next = self.value + 1;
        self.model.expect(&self.name, |one| one.disk.push(Some(next)));
        let place = directory(self.world, &self.name);
        let ram = File::options().write(true).open(place.join("ram")).unwrap();
        for page in 0..PAGES {
            ram.write_all_at(&next.to_ne_bytes(), page * APART).unwrap();
        }
        let disk = File::options().write(true).open(place.join("disk")).unwrap();
        disk.write_all_at(&next.to_ne_bytes(), 0).unwrap();
        disk.sync_data().unwrap();
        self.value = next;
        self.model.expect(&self.name, |one| one.disk = vec![Some(next)]);
    }

    async fn play(mut self, ends: &AtomicBool) {
        while !ends.load(Ordering::Relaxed) {
            self.model.expect(&self.name, |one| one.disk.push(Some(IMAGE)));
            self.ask(Request::New { spec: spec(&self.name) }).await.unwrap();
            self.model.expect(&self.name, |one| one.disk = vec![Some(IMAGE)]);
            (self.value, self.snapshots) = (IMAGE, Vec::new());
            for _ in 0..self.dice.below(40) {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                self.step().await;
            }
            self.model.expect(&self.name, |one| (one.disk.push(None), one.snapshots.clear()).0);
            self.ask(Request::Remove { names: vec![named(&self.name)] }).await.unwrap();
            self.model.expect(&self.name, |one| one.disk = vec![None]);
        }
    }

    async fn step(&mut self) {
        let name = || named(&self.name);
        match self.dice.below(9) {
            0..3 => {
                self.wake().await;
                self.write();
            }
            3 => self.ask(Request::Sleep { name: name() }).await.unwrap_or(()),
            4 => self.ask(Request::Stop { name: name() }).await.unwrap_or(()),
            5 => self.world.host.archive.sync_all().await,
            6 => self.snapshot().await,
            7 => self.restore().await,
            _ => self.fork().await,
        }
    }

    async fn snapshot(&mut self) {
        let (label, value) = (format!("s{}", self.snapshots.len()), self.value);
        let asked = label.parse::<Label>().unwrap();
        self.ask(Request::Snapshot { name: named(&self.name), label: Some(asked) }).await.unwrap();
        self.model.expect(&self.name, |one| {
            one.snapshots.insert(label.clone(), value);
        });
        self.snapshots.push((label, value));
    }

    async fn restore(&mut self) {
        let Some((label, value)) = self.snapshots.last().cloned() else { return };
        self.model.expect(&self.name, |one| one.disk.push(Some(value)));
        let point = label.parse::<Point>().unwrap();
        self.ask(Request::Restore { name: named(&self.name), point }).await.unwrap();
        self.value = value;
        self.model.expect(&self.name, |one| one.disk = vec![Some(value)]);
    }

    /// A copy is there as soon as it was acknowledged, and then gone again.
    async fn fork(&mut self) {
        let (child, value) = (format!("{}-child", self.name), self.value);
        let fork = Request::Fork {
            source: Some(named(&self.name)),
            new: Some(named(&child)),
            count: None,
            no_secrets: false,
        };
        self.model.expect(&child, |one| one.disk.push(Some(value)));
        self.ask(fork).await.unwrap();
        self.model.expect(&child, |one| one.disk = vec![Some(value)]);
        self.model.expect(&child, |one| one.disk.push(None));
        self.ask(Request::Remove { names: vec![named(&child)] }).await.unwrap();
        self.model.expect(&child, |one| one.disk = vec![None]);
    }
}

/// What an image's disk says.
const IMAGE: u64 = u64::from_ne_bytes([7; 8]);

/// hostd starts on a disk whose power was cut.
fn check(place: &Path, expected: &BTreeMap<String, Expected>) -> u32 {
    let scratch = Scratch::there(place);
    scratch.reboot();
    life(async || {
        let world = World::open_with(&scratch, larger).await;
        let lost: Vec<_> = world.host.lost.all().into_iter().map(|entry| entry.note).collect();
        // A capture that nobody was told of may be torn as a whole.
        let torn = |note: &crate::lost::Note| {
            note.kind == LostKind::Snapshot && note.reason.contains("its manifest: it does not decode")
        };
        assert!(lost.iter().all(torn), "moved aside: {lost:?}");
        let mut resumed = 0;
        for (name, expected) in expected {
            let Ok(machine) = world.host.fleet.find(&world.user, &named(name)) else {
                assert!(expected.disk.contains(&None), "{name} is gone: {expected:?}");
                continue;
            };
            let before = (*machine.record()).clone();
            for (label, value) in &expected.snapshots {
                let point = label.parse::<Point>().unwrap();
                let found = world.host.archive.point(machine.id(), &point);
                let found = found.unwrap_or_else(|_| panic!("{name}'s snapshot {label} is gone"));
                assert!(!world.host.archive.is_torn(&found.id), "{name}'s snapshot {label} is torn");
                let disk = world.host.storage.generations().directory(&found.id).join("disk");
                assert_eq!(number(&disk), *value, "{name}'s snapshot {label}");
            }
            let used = world.ask(Request::Attach { name: named(name) }).await;
            used.unwrap_or_else(|refusal| panic!("{name} cannot be used: {refusal}, {before:?}"));
            let (record, place) = (machine.record(), directory(&world, name));
            let found = number(&place.join("disk"));
            assert!(
                expected.disk.contains(&Some(found)),
                "{name}'s disk says {found}: {expected:?}, before {before:?}, after {record:?}"
            );
            if before.state == State::Asleep && record.failure.is_none() {
                let ram = File::open(place.join("ram")).unwrap();
                let mut page = [0; 8];
                // Memory has nothing in it until a machine that booted is written to.
                let last = before.woke_from.as_ref().and_then(|id| world.host.archive.get(id));
                let booted = last.is_none_or(|from| from.state_size == 0);
                for at in 0..PAGES {
                    ram.read_exact_at(&mut page, at * APART).unwrap();
                    let page = u64::from_ne_bytes(page);
                    assert!(
                        page == found || (page == 0 && (booted || found == IMAGE)),
                        "{name}'s page {at} says {page}, its disk {found}: {before:?}"
                    );
                }
                resumed += 1;
            } else if before.state == State::Stopped && before.sleeps_in.is_some() {
                let slept = before.sleeps_in.as_ref().and_then(|id| world.host.archive.get(id));
                let only_disk = slept
                    .as_ref()
                    .is_some_and(|one| one.state_size == 0 || matches!(one.why, Why::Snapshot(_)));
                assert!(
                    only_disk || record.failure.is_some(),
                    "{name} boots and does not say why: {before:?}"
                );
            }
        }
        resumed
    })
}

fn larger(config: &mut berth_config::Config) {
    config.quota.machines = 8;
}

#[test]
fn what_was_acknowledged_outlives_a_power_failure_at_any_moment() {
    berth_sys::needs_root!();
    let disk = Disk::new().unwrap();
    let torture: Option<u32> = std::env::var("BERTH_TORTURE").ok().and_then(|moments| moments.parse().ok());
    let moments = torture.unwrap_or(MOMENTS);
    let begun = Instant::now();
    let (mut done, mut resumed) = (0, 0);
    // It is by chance what machines do at a moment: as many more as it takes to resume one.
    let goes_on =
        |done: u32, resumed: u32| done < moments || (resumed == 0 && done < moments.saturating_mul(MORE));
    while goes_on(done, resumed) {
        let (model, ends) = (Arc::new(Model::default()), Arc::new(AtomicBool::new(false)));
        let name = format!("life-{done}");
        let scratch = Arc::new(Scratch::at(&disk.now().join(&name)));
        rustix::fs::syncfs(File::open(scratch.path()).unwrap()).unwrap();
        let last = done + LIFE;
        let (played, stops, place) = (model.clone(), ends.clone(), scratch.clone());
        let player = std::thread::spawn(move || {
            life(async || {
                let world = World::open_with(&place, larger).await;
                let play = |name: &str| {
                    let (dice, snapshots) = (Dice::new(), Vec::new());
                    let name = name.to_owned();
                    Player { world: &world, model: &played, name, dice, value: 0, snapshots }.play(&stops)
                };
                tokio::join!(play("one"), play("two"));
            });
        });
        let mut dice = Dice::new();
        while done < last && goes_on(done, resumed) && !player.is_finished() {
            std::thread::sleep(Duration::from_micros(dice.below(150_000)));
            let before = model.now();
            let cut = disk.cut().unwrap();
            let after = model.now();
            let expected = model.between(&before, &after);
            resumed += check(&cut.mount().unwrap().join(&name), &expected);
            done += 1;
        }
        ends.store(true, Ordering::Relaxed);
        player.join().unwrap();
        scratch.end_processes();
    }
    assert!(resumed > 0, "in {done} moments no machine was resumed");
    println!("{done} moments, {resumed} machines resumed, in {:?}", begun.elapsed());
}
