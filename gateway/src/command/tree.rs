//! `tree`: which machine was forked from which.

use super::{Answer, Context, Help, args, unexpected};
use berth_api::{MachineView, Reply, Request};
use berth_types::{MachineId, Refusal};

pub const HELP: Help = Help {
    verb: "tree",
    usage: "tree",
    summary: "which machine was forked from which",
    examples: &["{ssh} {host} tree"],
    notes: "",
};

pub async fn run(context: &Context<'_>, words: &[String]) -> Result<Answer, Refusal> {
    args::nothing(&HELP, words, context.address)?;
    match context.call(Request::List).await? {
        Reply::Machines(machines) => Answer::new(render(&machines), &machines),
        _ => Err(unexpected()),
    }
}

fn render(machines: &[MachineView]) -> String {
    let there = |id: &MachineId| machines.iter().any(|machine| machine.id == *id);
    let mut text = String::new();
    for machine in machines {
        match (&machine.parent_id, &machine.parent) {
            (Some(id), _) if there(id) => {}
            // Its parent is gone, and still worth a word.
            (Some(_), Some(name)) => {
                text.push_str(&format!("{} {} (from {name}, removed)\n", machine.name, machine.state));
                children(machines, &machine.id, 1, &mut text);
            }
            _ => {
                text.push_str(&format!("{} {}\n", machine.name, machine.state));
                children(machines, &machine.id, 1, &mut text);
            }
        }
    }
    text
}

fn children(machines: &[MachineView], parent: &MachineId, depth: usize, text: &mut String) {
    for machine in machines.iter().filter(|machine| machine.parent_id.as_ref() == Some(parent)) {
        text.push_str(&format!("{}└ {} {}\n", "  ".repeat(depth), machine.name, machine.state));
        children(machines, &machine.id, depth + 1, text);
    }
}
