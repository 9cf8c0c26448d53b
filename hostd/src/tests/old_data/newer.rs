//! What a newer berth wrote is refused or moved aside, with a line that says so, and stays
//! as it is to the byte.

use super::*;
use crate::{error::Error, store::Store};
use std::path::PathBuf;

const WORDS: &str = "has format version 99";

/// A file of version 99, of which this build knows nothing else.
fn make_newer(old: &OldData, place: &str) -> (PathBuf, Vec<u8>) {
    let path = old.data.join(place);
    let bytes = format!("{{\n  \"format_version\": 99,\n  \"sealed\": \"{place}\"\n}}\n").into_bytes();
    fs::write(&path, &bytes).unwrap();
    (path, bytes)
}

#[test]
fn a_newer_mirror_is_moved_aside_and_written_anew_from_the_store() {
    berth_sys::needs_root!();
    for directory in ["users", "policies", "secrets"] {
        let scratch = Scratch::new();
        let old = OldData::write(scratch.path());
        let (path, bytes) = make_newer(&old, &format!("{directory}/{ANN}.json"));
        life(async || {
            let world = World::open(&scratch).await;
            let lost = world.host.lost.all();
            assert_eq!(lost.len(), 1, "{directory}");
            assert!(lost[0].note.reason.contains(WORDS), "{}", lost[0].note.reason);
            assert_eq!(fs::read(&lost[0].files).unwrap(), bytes, "{directory}");
            world.host.lost.remove(&lost[0]).unwrap();
            check_everything(&world);
        });
        if directory != "secrets" {
            assert_eq!(json(&path)["format_version"], 2, "{directory}");
        }
    }
}

#[test]
fn a_newer_record_of_a_machine_that_the_store_has_lost_is_moved_aside_with_its_disk() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let old = OldData::write(scratch.path());
    let (path, bytes) = make_newer(&old, &format!("pool/machines/{DEV}/machine.json"));
    old.remove_store();
    life(async || {
        let world = World::open(&scratch).await;
        let lost = world.host.lost.all();
        assert_eq!(lost.len(), 1);
        let reason =
            "its record: it has format version 99, which needs a newer berth: this one reads up to 2";
        assert_eq!(lost[0].note.reason, reason);
        assert!(!path.exists());
        assert_eq!(fs::read(lost[0].files.join("machine.json")).unwrap(), bytes);
        assert_eq!(fs::read_to_string(lost[0].files.join("disk")).unwrap(), "disk of dev");
        assert_eq!(world.machine("sleeper").record().state, State::Asleep, "the others are not concerned");
    });
}

#[test]
fn a_newer_snapshot_is_moved_aside() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let old = OldData::write(scratch.path());
    let (_, bytes) = make_newer(&old, &format!("pool/generations/{SNAPSHOT}/manifest.json"));
    life(async || {
        let world = World::open(&scratch).await;
        let lost = world.host.lost.all();
        assert_eq!(lost.len(), 1);
        assert!(lost[0].note.reason.contains(WORDS), "{}", lost[0].note.reason);
        assert_eq!(fs::read(lost[0].files.join("manifest.json")).unwrap(), bytes);
        assert_eq!(fs::read_to_string(lost[0].files.join("ram")).unwrap(), "memory of snapsnapsnap");
        world.ask(Request::Attach { name: named("dev") }).await.unwrap();
    });
}

/// Its memory is kept, and the machine boots from the disk that is with it.
#[test]
fn what_a_machine_sleeps_in_stays_where_it_is_when_it_is_newer() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let old = OldData::write(scratch.path());
    let (path, bytes) = make_newer(&old, &format!("pool/generations/{SLEEP}/manifest.json"));
    life(async || {
        let world = World::open(&scratch).await;
        assert_eq!(world.host.lost.all().len(), 0);
        world.ask(Request::Attach { name: named("sleeper") }).await.unwrap();
        let record = world.machine("sleeper").record();
        assert_eq!(record.state, State::Running);
        let reason = &record.failure.as_ref().unwrap().reason;
        assert!(reason.contains(WORDS), "{reason}");
        assert_eq!(fs::read(&path).unwrap(), bytes);
        let ram = fs::read_to_string(path.with_file_name("ram")).unwrap();
        assert_eq!(ram, "memory of nightnightni");
    });
}

/// A build that went on without what it does not know would end machines that run.
#[test]
fn a_store_with_a_newer_record_is_not_opened() {
    berth_sys::needs_root!();
    let places = [
        ("users", ANN.to_owned()),
        ("keys", key("ann").fingerprint),
        ("machines", DEV.to_owned()),
        ("secrets", format!("{ANN}/openai")),
        ("policies", format!("{ANN}/team=web")),
    ];
    for (tree, place) in places {
        let scratch = Scratch::new();
        let mut old = OldData::write(scratch.path());
        old.change(tree, &place, |record| record["format_version"] = 99.into());
        let before = stored_bytes(&old, tree, &place);
        let refused = crate::store::open_or_set_aside(&old.data.join("store")).unwrap_err();
        assert!(matches!(refused, Error::StoreIsNewer { version: 99, .. }), "{refused}");
        let line = refused.chain();
        let says =
            format!("({place}) of format version 99, and this berth reads up to 2: start the newer one");
        assert!(line.contains(&says) && !line.contains('\n'), "{line}");
        drop(refused);
        assert_eq!(stored_bytes(&old, tree, &place), before, "{tree}");
        assert!(!old.data.join("store.broken-1").exists(), "it is not damaged");
        assert!(Store::open(&old.data.join("store")).is_err(), "and again");
    }
}
