//! A data directory as commit f8cd9a1 left it. FROZEN, as its writers are.

use super::frozen::*;
use ed25519_dalek::SigningKey;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
};

pub const ANN: &str = "annannannann";
pub const BOB: &str = "bobbobbobbob";
pub const DEV: &str = "devdevdevdev";
pub const SLEEPER: &str = "sleepsleeper";
/// A named snapshot of DEV, and where SLEEPER sleeps.
pub const SNAPSHOT: &str = "snapsnapsnap";
pub const SLEEP: &str = "nightnightni";
/// An image's, of a build that did not say in which boot it made it.
pub const TEMPLATE: &str = "templatetemp";
pub const SECRET: &[u8] = b"sk-secret-value";
/// What the fake driver writes.
const STATE: &str = "berth: a fake machine's devices\n";
const MASTER: [u8; 32] = [6; 32];
const THEN: &str = "2026-03-01T10:20:30.123456789Z";
/// In which the sleep was frozen.
const BOOT: &str = "00000001";

pub struct OldData {
    pub data: PathBuf,
    pub key: SigningKey,
    /// As sled has them: tree, key, value.
    pub records: Vec<(&'static str, String, Vec<u8>)>,
}

impl OldData {
    /// Everything, the store too.
    pub fn write(scratch: &Path) -> Self {
        let data = scratch.join("data");
        let key = SigningKey::from_bytes(&[5; 32]);
        let mut old = Self { data, key, records: Vec::new() };
        for place in ["users", "policies", "secrets", "audit", "pool/generations", "pool/machines"] {
            fs::create_dir_all(old.data.join(place)).unwrap();
        }
        old.put("signing.key", &old.key.to_bytes());
        old.put("mirrors.signed", b"every mirror of this installation is signed\n");
        old.put("next-uid", b"700064\n");
        old.users();
        old.machines();
        old.policies();
        old.secrets();
        old.audit();
        old.store();
        old
    }

    fn put(&self, place: &str, bytes: &[u8]) {
        use std::io::Write as _;
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(self.data.join(place));
        file.unwrap().write_all(bytes).unwrap();
    }

    fn record(&mut self, tree: &'static str, key: &str, value: &impl Serialize) {
        self.records.push((tree, key.to_owned(), serde_json::to_vec(value).unwrap()));
    }

    pub fn mirror(&self, place: &str, kind: &str, value: &impl Serialize) {
        self.put(place, &mirror(&self.key, kind, value));
    }

    fn users(&mut self) {
        let lock = json!({"reason": "unpaid", "since": THEN});
        for (id, label, created, locked, names) in [
            (BOB, "bob", "2026-01-01T00:00:00Z", Some(lock), vec!["bob"]),
            (ANN, "ann", "2026-02-01T00:00:00Z", None, vec!["ann", "laptop"]),
        ] {
            let (id_text, label, created) = (id.to_owned(), label.to_owned(), created.to_owned());
            let user = User { generation: 1, id: id_text, label, created, locked };
            let keys: Vec<SshKey> = names.into_iter().map(ssh_key).collect();
            self.record("users", id, &user);
            for key in &keys {
                let record = KeyRecord { owner: id.to_owned(), key: key.clone() };
                self.record("keys", &key.fingerprint, &record);
            }
            self.mirror(&format!("users/{id}.json"), "a user", &UserMirror { user, keys });
        }
    }

    fn machines(&mut self) {
        let dev = Machine {
            egress: Some(EgressPolicy { deny: vec!["evil.example".into()], ..open() }),
            idle: Some(json!({"pause": 300_000, "sleep": null})),
            parent: Some(json!({"machine": "gonegonegone", "name": "old", "at": THEN})),
            failure: Some(json!({"reason": "it fell over", "at": THEN})),
            lineage: vec!["gonegonegone".into()],
            no_secrets: true,
            ..machine(DEV, "dev", 700_000, "stopped")
        };
        let sleeper =
            Machine { sleeps_in: Some(SLEEP.into()), ..machine(SLEEPER, "sleeper", 700_001, "asleep") };
        for machine in [&dev, &sleeper] {
            self.record("machines", &machine.id, machine);
            let place = self.data.join("pool/machines").join(&machine.id);
            fs::DirBuilder::new().mode(0o710).create(&place).unwrap();
            chown(&place, None, Some(machine.uid)).unwrap();
            fs::set_permissions(&place, fs::Permissions::from_mode(0o710)).unwrap();
            let own = ["console.log", "hypervisor.log"].into_iter();
            for name in own.chain((machine.id == DEV).then_some("disk")) {
                self.put(
                    &format!("pool/machines/{}/{name}", machine.id),
                    format!("{name} of {}", machine.name).as_bytes(),
                );
                chown(place.join(name), Some(machine.uid), Some(machine.uid)).unwrap();
            }
            self.mirror(&format!("pool/machines/{}/machine.json", machine.id), "a machine", machine);
        }
        let before = generation(SNAPSHOT, Why::Snapshot("before".into()), DEV, "dev");
        self.snapshot(&Generation { guest: Some(2), ..before });
        self.snapshot(&generation(SLEEP, Why::Sleep, SLEEPER, "sleeper"));
        let template = Why::Template { version: "8192-1-0".into() };
        let nobodys = generation(TEMPLATE, template, "", "template");
        self.snapshot(&Generation { machine: None, owner: None, boot: None, ..nobodys });
    }

    fn snapshot(&self, generation: &Generation) {
        let place = format!("pool/generations/{}", generation.id);
        fs::DirBuilder::new().mode(0o700).create(self.data.join(&place)).unwrap();
        for (name, text) in [("disk", "disk of "), ("ram", "memory of ")] {
            self.put(&format!("{place}/{name}"), format!("{text}{}", generation.id).as_bytes());
        }
        self.put(&format!("{place}/state"), STATE.as_bytes());
        self.put(&format!("{place}/synced"), b"");
        self.put(&format!("{place}/manifest.json"), &manifest(&self.key, generation));
    }

    fn policies(&mut self) {
        let policy = EgressPolicy { mode: "allowlist".into(), allow: vec!["*.debian.org".into()], ..open() };
        let web = Some(("team".to_owned(), "web".to_owned()));
        let records = [
            PolicyRecord { owner: ANN.into(), label: None, policy: policy.clone() },
            PolicyRecord { owner: ANN.into(), label: web, policy },
        ];
        for (record, place) in records.iter().zip([ANN.to_owned(), format!("{ANN}/team=web")]) {
            self.record("policies", &place, record);
        }
        self.mirror(&format!("policies/{ANN}.json"), "policies", &records);
    }

    fn secrets(&mut self) {
        self.put("secrets/master.key", &MASTER);
        self.seal_again(|_| ());
    }

    /// Seals the secret, in the store and in its mirror.
    pub fn seal_again(&mut self, change: impl Fn(&mut Value)) {
        let meta = Meta {
            generation: 1,
            owner: ANN.into(),
            name: "openai".into(),
            binding: json!({"to": ["api.example.com"], "projections": ["placeholder"]}),
            machine: Some(SLEEPER.into()),
            placeholder: "berth_secret_0123".into(),
            created: THEN.into(),
            set: THEN.into(),
        };
        let mut meta = serde_json::to_value(meta).unwrap();
        change(&mut meta);
        let (sealed, place) = (seal(&MASTER, &meta, SECRET), format!("{ANN}/openai"));
        self.records.retain(|(tree, ..)| *tree != "secrets");
        self.record("secrets", &place, &sealed);
        self.put(&format!("secrets/{ANN}.json"), &serde_json::to_vec(&[sealed]).unwrap());
        self.store();
    }

    fn audit(&self) {
        // The key that the tests' hostd has.
        let key = SigningKey::from_bytes(&[1; 32]);
        let mut deeds = Audit::new(key.clone(), "deeds");
        deeds.line(THEN, r#""kind":"started","version":"0.1.0""#);
        deeds.line(
            THEN,
            &format!(r#""kind":"verb","user":"{ANN}","verb":"sleep","machine":"sleeper","outcome":"done""#),
        );
        deeds.checkpoint(THEN);
        deeds.line(
            THEN,
            &format!(r#""kind":"login","user":"{ANN}","fingerprint":"SHA256:x","registered":false"#),
        );
        let mut egress = Audit::new(key, "egress");
        egress.line(THEN, r#""kind":"started","version":"0.1.0""#);
        egress.line(THEN, &format!(
            r#""kind":"egress","user":"{ANN}","machine":"dev","machine_id":"{DEV}","host":"a.example","port":443,"protocol":"tls","verdict":"allowed","up":1,"down":2"#
        ));
        egress.checkpoint(THEN);
        for (name, text) in deeds.files().into_iter().chain(egress.files()) {
            self.put(&format!("audit/{name}"), text.as_bytes());
        }
    }

    /// The store, or another in its place.
    pub fn store(&self) {
        let database = sled::open(self.data.join("store")).unwrap();
        for (tree, key, value) in &self.records {
            database.open_tree(tree).unwrap().insert(key.as_bytes(), value.as_slice()).unwrap();
        }
        database.insert(b"next-uid", &700_002_u32.to_be_bytes()).unwrap();
        database.flush().unwrap();
    }

    pub fn remove_store(&self) {
        fs::remove_dir_all(self.data.join("store")).unwrap();
    }

    /// What is written of one record, with a change to it, and written again wherever it is.
    pub fn change(&mut self, tree: &str, key: &str, change: impl Fn(&mut Value)) {
        for (_, _, value) in
            self.records.iter_mut().filter(|(in_tree, of, _)| (*in_tree, of.as_str()) == (tree, key))
        {
            let mut record = serde_json::from_slice(value).unwrap();
            change(&mut record);
            *value = serde_json::to_vec(&record).unwrap();
        }
        self.remove_store();
        self.store();
    }
}

fn open() -> EgressPolicy {
    EgressPolicy { mode: "open".into(), ..EgressPolicy::default() }
}

/// As `tests::key` makes it.
fn ssh_key(name: &str) -> SshKey {
    let key = crate::tests::key(name);
    SshKey {
        fingerprint: key.fingerprint,
        public: key.public,
        comment: name.into(),
        added: THEN.into(),
        added_by: None,
        added_from: Some("192.0.2.9".into()),
        told: None,
    }
}

fn machine(id: &str, name: &str, uid: u32, state: &str) -> Machine {
    Machine {
        generation: 1,
        id: id.into(),
        owner: ANN.into(),
        name: name.into(),
        image: "debian".into(),
        cpus: 2,
        memory: 128 << 20,
        disk: 1 << 20,
        labels: BTreeMap::from([("team".to_owned(), "web".to_owned())]),
        created: THEN.into(),
        last_used: THEN.into(),
        uid,
        fresh: false,
        state: state.into(),
        failure: None,
        runtime: None,
        sleeps_in: None,
        parent: None,
        idle: None,
        keepalive_until: None,
        held: None,
        schedule: None,
        expires: None,
        egress: None,
        lineage: Vec::new(),
        no_secrets: false,
        template: false,
        woke_from: None,
    }
}

fn generation(id: &str, why: Why, machine: &str, name: &str) -> Generation {
    Generation {
        generation: 1,
        id: id.into(),
        why,
        machine: Some(machine.into()),
        owner: Some(ANN.into()),
        name: name.into(),
        created: THEN.into(),
        image: "debian".into(),
        cpus: 2,
        memory: 128 << 20,
        disk: 1 << 20,
        driver: "fake".into(),
        driver_version: "1".into(),
        state_size: STATE.len() as u64,
        state_sha256: hex(&Sha256::digest(STATE)),
        boot: Some(BOOT.into()),
        guest: None,
    }
}
