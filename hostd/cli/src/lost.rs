//! `berth lost`: what a start could not place, and moved aside instead of deleting it.

use crate::{api, context::Context, output, user};
use berth_api::{LostView, Reply, Request};
use berth_types::{MachineName, Refusal};
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List what was moved aside, and why
    Ls,
    /// Show one entry with its files
    Show {
        /// As 'berth lost ls' calls it
        entry: String,
    },
    /// Give a machine back to a user
    Restore {
        /// As 'berth lost ls' calls it
        entry: String,
        /// The user's id, or their label if nobody else has it
        #[arg(long)]
        user: String,
        /// What the machine is called from here on [default: what it was called]
        #[arg(long)]
        name: Option<MachineName>,
    },
    /// Delete one entry for good
    Rm {
        /// As 'berth lost ls' calls it
        entry: String,
    },
}

pub fn run(context: &Context, command: Command) -> Result<(), Refusal> {
    match command {
        Command::Ls => list(context),
        Command::Show { entry } => show(context, entry),
        Command::Restore { entry, user, name } => restore(context, entry, &user, name),
        Command::Rm { entry } => remove(context, entry),
    }
}

fn entries(context: &Context, request: Request) -> Result<Vec<LostView>, Refusal> {
    match api::call(context, request)? {
        Reply::Lost(entries) => Ok(entries),
        _ => Err(api::unexpected()),
    }
}

fn list(context: &Context) -> Result<(), Refusal> {
    let entries = entries(context, Request::LostList)?;
    if context.json {
        return output::json(&entries);
    }
    if entries.is_empty() {
        say!("nothing was moved aside");
        return Ok(());
    }
    let rows = entries.iter().map(|one| {
        let machine = one.machine.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        [one.entry.clone(), machine, one.occupied.to_string(), format!("{:.0}", one.at), one.reason.clone()]
    });
    output::table(["ENTRY", "MACHINE", "SIZE", "SINCE", "WHY"], rows);
    Ok(())
}

fn show(context: &Context, entry: String) -> Result<(), Refusal> {
    let entries = entries(context, Request::LostShow { entry })?;
    let Some(one) = entries.first() else { return Err(api::unexpected()) };
    if context.json {
        return output::json(one);
    }
    let unknown = || "not said".to_owned();
    show!("entry    {}", one.entry);
    show!("why      {}", one.reason);
    show!("since    {:.0}", one.at);
    show!("machine  {}", one.machine.as_ref().map_or_else(unknown, ToString::to_string));
    show!("owner    {}", one.owner.as_ref().map_or_else(unknown, ToString::to_string));
    show!("size     {}", one.occupied);
    show!("path     {}", one.path);
    show!("files    {}", one.files.join(" "));
    Ok(())
}

fn restore(context: &Context, entry: String, owner: &str, name: Option<MachineName>) -> Result<(), Refusal> {
    let user = user::find(context, owner)?;
    let Reply::Machine(machine) = api::call(context, Request::LostRestore { entry, user, name })? else {
        return Err(api::unexpected());
    };
    if context.json {
        return output::json(&machine);
    }
    show!("{} is {owner}'s again, and {}", machine.name, machine.state);
    Ok(())
}

fn remove(context: &Context, entry: String) -> Result<(), Refusal> {
    let Reply::Done = api::call(context, Request::LostRemove { entry: entry.clone() })? else {
        return Err(api::unexpected());
    };
    if context.json {
        return output::json(&serde_json::json!({ "removed": entry }));
    }
    show!("{entry} is deleted");
    Ok(())
}
