//! Policies, secrets and the record, as users ask for them.

use super::{Scratch, World, key, named};
use berth_api::{EgressChange, EgressTarget, EgressView, Reply, Request, SecretInput};
use berth_types::{
    AuditEvent, Code, Refusal,
    egress::{Binding, EgressMode, HostPattern, Projection, SecretName, SecretValue},
};

const VALUE: &str = "sk-nobody-reads-this";

fn rules(list: &[&str]) -> Vec<HostPattern> {
    list.iter().map(|text| text.parse().unwrap()).collect()
}

fn set(name: &str, machine: Option<&str>) -> Request {
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
    let report = berth_egress::audit::verify(&files, &berth_egress::audit::read_public_key(&files).unwrap());
    assert_eq!(report.unwrap().problems, []);
    assert!(!std::fs::read_to_string(files.join("0000000001.jsonl")).unwrap().contains(VALUE));
    world.user = world.host.registry.register("bob", key("bob")).await.unwrap().id;
    assert_eq!(world.ask(audit).await.unwrap(), Reply::Audit(vec![]));
}
