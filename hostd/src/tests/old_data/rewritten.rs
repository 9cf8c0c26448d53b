//! What is written again has a version, and keeps what this build does not know of it.

use super::*;
use crate::{archive, format};
use berth_api::{EgressChange, EgressTarget, SecretInput};
use berth_types::{
    Generation,
    egress::{Binding, SecretValue},
};
use serde_json::json;

/// Changes something of each, as users and the operator do.
async fn change_all(world: &World) {
    world.operate(Request::UserLock { user: user(ANN), reason: "a test".into() }).await.unwrap();
    world.operate(Request::UserUnlock { user: user(ANN) }).await.unwrap();
    world.ask(Request::KeyAdd { key: key("new") }).await.unwrap();
    // The oldest key is told of the new one, which its record keeps.
    world.host.registry.notices(&user(ANN), &key("ann").fingerprint).await.unwrap();
    world.ask(Request::Rename { old: named("dev"), new: named("moved") }).await.unwrap();
    for target in [EgressTarget::All, EgressTarget::Machine(named("moved"))] {
        let change = Some(EgressChange::Deny(vec!["x.example".parse().unwrap()]));
        world.ask(Request::Egress { target, change }).await.unwrap();
    }
    let binding = Binding::new(vec!["api.example.com".parse().unwrap()], vec![Projection::Placeholder]);
    let value = SecretInput(SecretValue::new(b"sk-another".to_vec()).unwrap());
    let (name, binding) = ("openai".parse().unwrap(), binding.unwrap());
    world.ask(Request::SecretSet { name, binding, machine: None, value }).await.unwrap();
}

/// What is stored of each kind that `change_all` changes, and a mirror that has it.
fn records() -> [(&'static str, String, String); 5] {
    [
        ("users", ANN.into(), format!("users/{ANN}.json")),
        ("keys", key("ann").fingerprint, format!("users/{ANN}.json")),
        ("machines", DEV.into(), format!("pool/machines/{DEV}/machine.json")),
        ("policies", ANN.into(), format!("policies/{ANN}.json")),
        ("secrets", format!("{ANN}/openai"), format!("secrets/{ANN}.json")),
    ]
}

#[test]
fn what_is_written_again_has_a_version() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let old = OldData::write(scratch.path());
    life(async || drop(World::open(&scratch).await));
    // Signed mirrors are migrated at once.
    for (tree, _, mirror) in records() {
        let version = json(&old.data.join(mirror)).get("format_version").cloned();
        assert_eq!(version, (tree != "secrets").then(|| json!(2)), "{tree}");
    }
    life(async || change_all(&World::open(&scratch).await).await);
    for (tree, key, mirror) in records() {
        assert_eq!(stored(&old, tree, &key)["format_version"], 2, "{tree}");
        assert_eq!(json(&old.data.join(mirror))["format_version"], 2, "{tree}");
    }
    let sealed = stored(&old, "secrets", &format!("{ANN}/openai"));
    assert!(sealed["meta"].as_str().unwrap().starts_with(r#"{"format_version":2,"#), "{sealed}");
}

/// Commit f8cd9a1 knows no versions. What it needs of the store is still there.
#[test]
fn a_build_before_versions_still_reads_the_store() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let old = OldData::write(scratch.path());
    life(async || change_all(&World::open(&scratch).await).await);
    let read = |tree, key: &str| stored(&old, tree, key);
    let machine: frozen::Machine = serde_json::from_value(read("machines", DEV)).unwrap();
    assert_eq!((machine.name.as_str(), machine.generation), ("moved", 1));
    serde_json::from_value::<frozen::User>(read("users", ANN)).unwrap();
    serde_json::from_value::<frozen::KeyRecord>(read("keys", &key("new").fingerprint)).unwrap();
    serde_json::from_value::<frozen::PolicyRecord>(read("policies", ANN)).unwrap();
    let sealed: frozen::Sealed = serde_json::from_value(read("secrets", &format!("{ANN}/openai"))).unwrap();
    serde_json::from_str::<frozen::Meta>(&sealed.meta).unwrap();
}

/// Adds a field to every record of the old data, in the store and in its mirrors.
fn add_unknown(old: &mut OldData) {
    let later = || json!({"since": 3});
    let mark = |record: &mut Value| record["later"] = later();
    old.change("users", ANN, mark);
    old.change("machines", DEV, |record| {
        mark(record);
        mark(&mut record["egress"]);
    });
    old.change("policies", ANN, |record| {
        mark(record);
        mark(&mut record["policy"]);
    });
    for name in ["ann", "laptop"] {
        old.change("keys", &key(name).fingerprint, |record| mark(&mut record["key"]));
    }
    let of = |tree: &str, key: &str| {
        let found = old.records.iter().find(|(of, at, _)| (*of, at.as_str()) == (tree, key)).unwrap();
        serde_json::from_slice::<Value>(&found.2).unwrap()
    };
    let keys = ["ann", "laptop"].map(|name| of("keys", &key(name).fingerprint)["key"].clone());
    let (user, machine) = (of("users", ANN), of("machines", DEV));
    let policies = [of("policies", ANN), of("policies", &format!("{ANN}/team=web"))];
    old.mirror(&format!("users/{ANN}.json"), "a user", &json!({"user": user, "keys": keys}));
    old.mirror(&format!("pool/machines/{DEV}/machine.json"), "a machine", &machine);
    old.mirror(&format!("policies/{ANN}.json"), "policies", &policies);
    old.seal_again(|meta| meta["later"] = later());
}

#[test]
fn what_this_build_does_not_know_of_a_record_survives() {
    berth_sys::needs_root!();
    for with_store in [true, false] {
        let scratch = Scratch::new();
        let mut old = OldData::write(scratch.path());
        add_unknown(&mut old);
        if !with_store {
            old.remove_store();
        }
        life(async || {
            let world = World::open(&scratch).await;
            check_everything(&world);
            change_all(&world).await;
        });
        let later = json!({"since": 3});
        let check = |tree: &str, record: &Value, pointer: &str| {
            let found = record.pointer(pointer);
            assert_eq!(found, Some(&later), "{tree} {pointer}, with a store: {with_store}: {record}");
        };
        for (tree, key, _) in records() {
            let record = stored(&old, tree, &key);
            match tree {
                "users" => check(tree, &record, "/later"),
                "keys" => check(tree, &record, "/key/later"),
                "machines" => ["/later", "/egress/later"].iter().for_each(|at| check(tree, &record, at)),
                "policies" => ["/later", "/policy/later"].iter().for_each(|at| check(tree, &record, at)),
                _ => {
                    let meta = serde_json::from_str(record["meta"].as_str().unwrap()).unwrap();
                    check(tree, &meta, "/later");
                }
            }
        }
        let mirror = |place: String| json(&old.data.join(place));
        let user = mirror(format!("users/{ANN}.json"));
        ["/signed/user/later", "/signed/keys/0/later"].iter().for_each(|at| check("users", &user, at));
        check("machines", &mirror(format!("pool/machines/{DEV}/machine.json")), "/signed/later");
        let policies = mirror(format!("policies/{ANN}.json"));
        let ours = policies["signed"]["policies"].as_array().unwrap();
        let ours = ours.iter().find(|record| record["label"].is_null()).unwrap();
        ["/later", "/policy/later"].iter().for_each(|at| check("policies", ours, at));
    }
}

/// A snapshot that shares another's memory keeps what is not known of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_this_build_does_not_know_of_a_snapshot_survives_a_copy() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let old = OldData::write(scratch.path());
    let manifest = old.data.join(format!("pool/generations/{SNAPSHOT}/manifest.json"));
    let signer = format::Signer::open(&old.data).unwrap();
    let read: Generation = signer.read(format::Kind::Snapshot, &fs::read(&manifest).unwrap()).unwrap();
    let mut later = serde_json::to_value(&read).unwrap();
    later["later"] = json!({"since": 3});
    fs::write(&manifest, signer.sign(format::Kind::Snapshot, &later).unwrap()).unwrap();
    let world = World::open(&scratch).await;
    check_everything(&world);
    let record = world.machine("dev").record();
    let fresh =
        archive::manifest(&record, Why::Snapshot("copy".parse().unwrap()), world.host.driver.as_ref());
    let copy = world.host.archive.copy(&snapshot(SNAPSHOT), fresh).await.unwrap();
    let file = json(&old.data.join(format!("pool/generations/{}/manifest.json", copy.id)));
    assert_eq!((&file["format_version"], &file["signed"]["later"]), (&json!(2), &later["later"]));
    world.host.archive.verify_whole(&copy.id).await.unwrap();
}
