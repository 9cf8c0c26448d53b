//! Policies, secrets and the record, as users ask for them.

use super::{Scratch, World, key, named};
use berth_api::{EgressChange, EgressTarget, EgressView, Reply, Request, SecretInput};
use berth_types::{
    AuditEvent, Code, Refusal,
    egress::{Binding, EgressMode, HostPattern, Projection, SecretName, SecretValue, Special},
};

const VALUE: &str = "sk-nobody-reads-this";

fn rules(list: &[&str]) -> Vec<HostPattern> {
    list.iter().map(|text| text.parse().unwrap()).collect()
}

pub fn set(name: &str, machine: Option<&str>) -> Request {
    Request::SecretSet {
        name: name.parse::<SecretName>().unwrap(),
        binding: Binding::new(rules(&["api.example.com"]), vec![Projection::Placeholder]).unwrap(),
        machine: machine.map(named),
        value: SecretInput(SecretValue::new(VALUE.into()).unwrap()),
    }
}

async fn egress(world: &World, name: &str, change: Option<EgressChange>) -> Result<EgressView, Refusal> {
    let target = EgressTarget::Machine(named(name));
    match world.ask(Request::Egress { target, change }).await? {
        Reply::Egress(view) => Ok(*view),
        other => panic!("no policy: {other:?}"),
    }
}

async fn names(world: &World, machine: &str) -> Vec<String> {
    egress(world, machine, None).await.unwrap().secrets.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_fork_may_reach_no_more_than_its_source() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let mut spec = super::spec("dev");
    spec.labels.insert("team".into(), "web".into());
    world.ask(Request::New { spec }).await.unwrap();
    let own = egress(&world, "dev", None).await.unwrap();
    assert_eq!((own.from.as_str(), own.reaches.as_str()), ("installation", "everything public"));
    egress(&world, "dev", Some(EgressChange::Mode(EgressMode::Allowlist))).await.unwrap();
    egress(&world, "dev", Some(EgressChange::Allow(rules(&["a.example"])))).await.unwrap();
    world.ask(set("ALL", None)).await.unwrap();
    world.ask(set("MINE", Some("dev"))).await.unwrap();
    for (new, no_secrets) in [("heir", false), ("cut", true)] {
        let (source, new) = (Some(named("dev")), Some(named(new)));
        world.ask(Request::Fork { source, new, count: None, no_secrets }).await.unwrap();
    }
    assert_eq!(names(&world, "heir").await, ["ALL", "MINE"]);
    assert_eq!(names(&world, "cut").await, [""; 0]);
    for child in ["heir", "cut"] {
        let view = egress(&world, child, None).await.unwrap();
        assert_eq!((view.from.as_str(), view.reaches.as_str()), ("machine", "only a.example"));
        assert_eq!(world.machine(child).record().labels.get("team").map(String::as_str), Some("web"));
    }
    // Its own secrets outlive a machine for as long as a fork has them.
    world.ask(Request::Remove { names: vec![named("dev")] }).await.unwrap();
    assert_eq!(names(&world, "heir").await, ["ALL", "MINE"]);
    world.ask(Request::Remove { names: vec![named("heir"), named("cut")] }).await.unwrap();
    let Reply::Secrets(left) = world.ask(Request::SecretList).await.unwrap() else { panic!("no list") };
    assert_eq!(left.iter().map(|secret| secret.name.as_str()).collect::<Vec<_>>(), ["ALL"]);
}

#[tokio::test]
async fn policies_by_label_and_for_all() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let mut spec = super::spec("dev");
    spec.labels.insert("team".into(), "web".into());
    world.ask(Request::New { spec }).await.unwrap();
    let change =
        async |target, change| world.ask(Request::Egress { target, change: Some(change) }).await.unwrap();
    let from = async || egress(&world, "dev", None).await.unwrap().from;
    let label = || EgressTarget::Label { key: "team".into(), value: "web".into() };
    change(EgressTarget::All, EgressChange::Mode(EgressMode::Closed)).await;
    assert_eq!(from().await, "user");
    change(label(), EgressChange::Mode(EgressMode::Open)).await;
    assert_eq!(from().await, "label");
    egress(&world, "dev", Some(EgressChange::Deny(rules(&["x.example"])))).await.unwrap();
    assert_eq!(from().await, "machine");
    egress(&world, "dev", Some(EgressChange::Default)).await.unwrap();
    change(label(), EgressChange::Default).await;
    change(EgressTarget::All, EgressChange::Default).await;
    assert_eq!(from().await, "installation");
}

#[tokio::test]
async fn a_secret_is_its_users_alone_and_is_in_no_answer() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let mut world = World::open(&scratch).await;
    world.new_machine("dev").await.unwrap();
    let answer = world.ask(set("KEY", Some("dev"))).await.unwrap();
    let list = world.ask(Request::SecretList).await.unwrap();
    for text in [format!("{answer:?}{list:?}"), serde_json::to_string(&[answer, list]).unwrap()] {
        assert!(text.contains("KEY") && !text.contains(VALUE), "{text}");
    }
    assert_eq!(world.ask(set("no-variable", None)).await.unwrap_err().code, Code::Usage);
    assert_eq!(world.ask(set("KEY", Some("nosuch"))).await.unwrap_err().code, Code::NotFound);
    let ann = world.user.clone();
    world.user = world.host.registry.register("bob", key("bob")).await.unwrap().id;
    assert_eq!(world.ask(Request::SecretList).await.unwrap(), Reply::Secrets(vec![]));
    let remove = Request::SecretRemove { name: "KEY".parse().unwrap() };
    assert_eq!(world.ask(remove.clone()).await.unwrap_err().code, Code::NotFound);
    assert_eq!(egress(&world, "dev", None).await.unwrap_err().code, Code::NotFound);
    world.user = ann;
    world.ask(remove).await.unwrap();
}

#[tokio::test]
async fn what_was_done_is_on_record_for_whoever_did_it() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let mut world = World::open(&scratch).await;
    world.new_machine("dev").await.unwrap();
    world.ask(set("KEY", None)).await.unwrap();
    world.ask(Request::Stop { name: named("nosuch") }).await.unwrap_err();
    world.host.audit.settle().await;
    let audit = Request::Audit { machine: None, since: None, egress: false, most: 100 };
    let Reply::Audit(entries) = world.ask(audit.clone()).await.unwrap() else { panic!("no record") };
    let verbs: Vec<(&str, &str)> = entries
        .iter()
        .filter_map(|entry| match &entry.event {
            AuditEvent::Verb { verb, outcome, .. } => Some((verb.as_str(), outcome.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!(verbs, [("new", "done"), ("secret set", "done"), ("stop", "not_found")]);
    let states = entries.iter().filter(|entry| matches!(entry.event, AuditEvent::Machine { .. })).count();
    assert!(states >= 2, "starting and running: {entries:?}");
    let files = scratch.path().join("data/audit");
    let report = berth_audit::verify(&files, &berth_audit::read_public_key(&files).unwrap(), &[]);
    assert_eq!(report.unwrap().problems, []);
    assert!(!std::fs::read_to_string(files.join("0000000001.jsonl")).unwrap().contains(VALUE));
    world.user = world.host.registry.register("bob", key("bob")).await.unwrap().id;
    assert_eq!(world.ask(audit).await.unwrap(), Reply::Audit(vec![]));
}

/// The bridge parses hostile bytes: what it says of whose machine it is, or at length, does not count.
#[tokio::test]
async fn the_record_takes_nothing_from_the_bridge_that_hostd_knows_better() {
    berth_sys::needs_root!();
    use berth_egress::control::{Decision, Event, Outcome, Protocol};
    let scratch = Scratch::new();
    let mut world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    let bob = world.host.registry.register("bob", key("bob")).await.unwrap().id;
    let decision = |machine: &berth_types::MachineId, time| Decision {
        machine: machine.clone(),
        owner: bob.clone(),
        time,
        protocol: Protocol::Tls,
        host: None,
        claimed: None,
        address: Some([192, 0, 2, 1].into()),
        port: Some(443),
        verdict: Outcome::Refused,
        rule: "\u{202e}closed\u{1b}[2J".into(),
        reason: "x".repeat(1 << 20),
        up: 0,
        down: 0,
    };
    let (tell, told) = tokio::sync::mpsc::channel(8);
    let future = "2100-01-01T00:00:00Z".parse().unwrap();
    for id in [machine.id(), &berth_types::MachineId::random()] {
        tell.send(Event::Decision(Box::new(decision(id, future)))).await.unwrap();
    }
    drop(tell);
    crate::egress::attend(world.host.clone(), told).await;
    let asked = Request::Audit { machine: None, since: None, egress: true, most: 100 };
    let Reply::Audit(entries) = world.ask(asked.clone()).await.unwrap() else { panic!("no record") };
    let [entry] = entries.as_slice() else { panic!("{entries:?}") };
    assert!(entry.time <= jiff::Timestamp::now(), "{}", entry.time);
    let AuditEvent::Egress(egress) = &entry.event else { panic!("{entry:?}") };
    assert_eq!((egress.machine.as_str(), egress.rule.as_str()), ("dev", "closed[2J"));
    assert!(egress.reason.len() < 1_000, "{} bytes", egress.reason.len());
    world.user = bob;
    assert_eq!(world.ask(asked).await.unwrap(), Reply::Audit(vec![]), "bob has no machine");
}

async fn change(world: &World, target: EgressTarget, change: EgressChange) -> Result<EgressView, Refusal> {
    match world.ask(Request::Egress { target, change: Some(change) }).await? {
        Reply::Egress(view) => Ok(*view),
        other => panic!("no policy: {other:?}"),
    }
}

#[tokio::test]
async fn of_changes_at_once_none_is_lost() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    world.new_machine("dev").await.unwrap();
    let label = EgressTarget::Label { key: "team".into(), value: "web".into() };
    for target in [EgressTarget::All, label, EgressTarget::Machine(named("dev"))] {
        let one = async |host: &str| {
            change(&world, target.clone(), EgressChange::Deny(rules(&[host]))).await.unwrap();
        };
        tokio::join!(one("a.example"), one("b.example"), one("c.example"), one("d.example"));
        let view = change(&world, target.clone(), EgressChange::Deny(rules(&["e.example"]))).await.unwrap();
        let mut denied: Vec<String> = view.policy.deny.iter().map(ToString::to_string).collect();
        denied.sort();
        assert_eq!(denied, ["a.example", "b.example", "c.example", "d.example", "e.example"], "{target:?}");
    }
}

#[tokio::test]
async fn policies_are_limited_in_number_and_in_rules() {
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let label = |value: &str| EgressTarget::Label { key: "team".into(), value: value.into() };
    let closed = || EgressChange::Mode(EgressMode::Closed);
    for bad in ["line\nbreak", &"x".repeat(260)] {
        assert_eq!(change(&world, label(bad), closed()).await.unwrap_err().code, Code::Usage);
    }
    let bad = EgressTarget::Label { key: String::new(), value: "web".into() };
    assert_eq!(change(&world, bad, closed()).await.unwrap_err().code, Code::Usage);
    for number in 0..100 {
        change(&world, label(&format!("t{number}")), closed()).await.unwrap();
    }
    let refused = change(&world, label("one more"), closed()).await.unwrap_err();
    assert!(refused.code == Code::Limit && refused.hint.contains("default"), "{refused:?}");
    // Those that are there can be changed, and taken away.
    change(&world, label("t0"), EgressChange::Mode(EgressMode::Open)).await.unwrap();
    change(&world, label("t1"), EgressChange::Default).await.unwrap();
    change(&world, label("one more"), closed()).await.unwrap();
    let many: Vec<String> = (0..500).map(|number| format!("h{number}.example")).collect();
    let many = rules(&many.iter().map(String::as_str).collect::<Vec<_>>());
    for number in 2..6 {
        let target = label(&format!("t{number}"));
        change(&world, target, EgressChange::Deny(many.clone())).await.unwrap();
    }
    let refused = change(&world, label("t6"), EgressChange::Deny(rules(&["x.example"]))).await.unwrap_err();
    assert!(refused.code == Code::Limit && refused.message.contains("2000 rules"), "{refused:?}");
}

#[tokio::test]
async fn what_is_never_reached_is_not_taken_and_an_old_rule_for_it_is_shown_as_such() {
    berth_sys::needs_root!();
    let scratch = Scratch::new();
    let world = World::open(&scratch).await;
    let machine = world.new_machine("dev").await.unwrap();
    let own = crate::net::own_addresses().unwrap();
    let own = own.iter().find(|address| Special::of(**address, &[]).is_none()).map(ToString::to_string);
    for (rule, why, hint) in [
        ("127.0.0.1", "a loopback address", "no rule opens"),
        ("0.0.0.0:22", "a reserved address", "no rule opens"),
        ("169.254.169.254", "a link-local address", "no rule opens"),
        ("100.64.0.0/10", "a shared address", "egress.allow_private"),
    ] {
        let refused = egress(&world, "dev", Some(EgressChange::Allow(rules(&["a.example", rule])))).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.code, Code::NotAllowed, "{rule}");
        assert!(refused.message.contains(rule) && refused.message.contains(why), "{refused:?}");
        assert!(refused.hint.contains(hint), "{refused:?}");
    }
    if let Some(own) = own {
        let refused = egress(&world, "dev", Some(EgressChange::Allow(rules(&[&own])))).await.unwrap_err();
        assert!(refused.message.contains("an address of the host"), "{refused:?}");
    }
    // Private networks are users' by the development configuration; denying needs no leave.
    egress(&world, "dev", Some(EgressChange::Allow(rules(&["10.0.0.9:443"])))).await.unwrap();
    egress(&world, "dev", Some(EgressChange::Deny(rules(&["127.0.0.1"])))).await.unwrap();
    // A policy of an earlier release is read as it was written, and has no such effect.
    let old = r#"{"allow":["0.0.0.0","127.0.0.0/8:80","10.0.0.9:443"]}"#;
    let policy = crate::machine::Policy::Egress(Some(Box::new(serde_json::from_str(old).unwrap())));
    machine.set(policy).await.unwrap();
    let view = egress(&world, "dev", None).await.unwrap();
    let shown: Vec<_> = view.ineffective.iter().map(|one| (one.rule.to_string(), one.why.as_str())).collect();
    let wanted = [("0.0.0.0", "a reserved address"), ("127.0.0.0/8:80", "a loopback address")];
    assert_eq!(shown, wanted.map(|(rule, why)| (rule.to_owned(), why)));
    assert_eq!(view.policy.allow.len(), 3);
}
