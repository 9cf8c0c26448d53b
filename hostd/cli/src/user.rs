//! `berth user`: who may log in where registration is closed.

use crate::{api, context::Context, key, output};
use berth_api::{Reply, Request, UserView};
use berth_types::{Code, Refusal, UserId};
use clap::Subcommand;
use std::{io::Read, path::PathBuf};

/// The longest file that can be one public key.
const LONGEST_KEY: u64 = 64 << 10;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Add a user with a first key
    Add {
        /// What to call them
        label: String,
        /// A file with their public key, or - for standard input
        key: PathBuf,
    },
    /// List the users
    Ls,
    /// Remove a user who has no machines, and their keys
    Rm {
        /// Their id, or their label if nobody else has it
        user: String,
    },
    /// End a user's connections and refuse new ones; machines stay as they are
    Lock {
        /// Their id, or their label if nobody else has it
        user: String,
        /// What the user is told
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Let a locked user in again
    Unlock {
        /// Their id, or their label if nobody else has it
        user: String,
    },
}

pub fn run(context: &Context, command: Command) -> Result<(), Refusal> {
    match command {
        Command::Add { label, key } => add(context, label, &key),
        Command::Ls => list(context),
        Command::Rm { user } => remove(context, &user),
        Command::Lock { user, reason } => {
            change(context, &user, |user| Request::UserLock { user, reason }, "is locked out")
        }
        Command::Unlock { user } => {
            change(context, &user, |user| Request::UserUnlock { user }, "may log in again")
        }
    }
}

fn add(context: &Context, label: String, path: &PathBuf) -> Result<(), Refusal> {
    if label.is_empty() || label.len() > 100 || label.chars().any(char::is_control) {
        let hint = "use a name or an e-mail address of at most 100 characters";
        return Err(Refusal::new(Code::Usage, "that cannot be a user's label", hint));
    }
    let name = if path.as_os_str() == "-" { "standard input".into() } else { path.to_string_lossy() };
    let text = read(path).map_err(|error| {
        Refusal::new(Code::Usage, format!("cannot read {name} ({error})"), "name a file with a public key")
    })?;
    let key = key::parse(&text).map_err(|error| {
        Refusal::new(Code::Usage, format!("{name}: {error}"), "give one line as in ~/.ssh/id_ed25519.pub")
    })?;
    let Reply::User(user) = api::call(context, Request::UserAdd { label, key })? else {
        return Err(api::unexpected());
    };
    if context.json {
        return output::json(&user);
    }
    show!("{} is {}", user.label, user.user);
    Ok(())
}

fn read(path: &PathBuf) -> std::io::Result<String> {
    let mut text = String::new();
    if path.as_os_str() == "-" {
        std::io::stdin().take(LONGEST_KEY).read_to_string(&mut text)?;
    } else {
        std::fs::File::open(path)?.take(LONGEST_KEY).read_to_string(&mut text)?;
    }
    Ok(text)
}

fn users(context: &Context) -> Result<Vec<UserView>, Refusal> {
    match api::call(context, Request::UserList)? {
        Reply::Users(users) => Ok(users),
        _ => Err(api::unexpected()),
    }
}

fn list(context: &Context) -> Result<(), Refusal> {
    let users = users(context)?;
    if context.json {
        return output::json(&users);
    }
    if users.is_empty() {
        say!("no users: add one with 'berth user add LABEL KEYFILE'");
        return Ok(());
    }
    let rows = users.iter().map(|user| {
        [
            user.user.to_string(),
            user.label.clone(),
            user.machines.to_string(),
            format!("{:.0}", user.created),
            if user.locked.is_some() { "locked" } else { "-" }.to_owned(),
            user.keys.join(" "),
        ]
    });
    output::table(["USER", "LABEL", "MACHINES", "CREATED", "ACCESS", "KEYS"], rows);
    Ok(())
}

fn remove(context: &Context, who: &str) -> Result<(), Refusal> {
    let user = choose(&users(context)?, who)?;
    let Reply::Done = api::call(context, Request::UserRemove { user: user.clone() })? else {
        return Err(api::unexpected());
    };
    if context.json {
        return output::json(&serde_json::json!({ "removed": user }));
    }
    show!("{who} is removed");
    Ok(())
}

/// A user by id or label.
pub fn find(context: &Context, who: &str) -> Result<UserId, Refusal> {
    choose(&users(context)?, who)
}

/// Locks or unlocks, and says what became of it.
fn change(
    context: &Context,
    who: &str,
    request: impl FnOnce(UserId) -> Request,
    became: &str,
) -> Result<(), Refusal> {
    let user = choose(&users(context)?, who)?;
    let Reply::User(user) = api::call(context, request(user))? else { return Err(api::unexpected()) };
    if context.json {
        return output::json(&user);
    }
    show!("{who} {became}");
    Ok(())
}

fn choose(users: &[UserView], who: &str) -> Result<UserId, Refusal> {
    let by_id = users.iter().find(|user| user.user.as_str() == who);
    let mut by_label = users.iter().filter(|user| user.label == who);
    match (by_id, by_label.next(), by_label.next()) {
        (Some(user), ..) | (None, Some(user), None) => Ok(user.user.clone()),
        (None, Some(_), Some(_)) => {
            let message = format!("several users are called '{who}'");
            Err(Refusal::new(Code::Conflict, message, "name one by the id that 'berth user ls' shows"))
        }
        (None, None, _) => {
            let message = format!("there is no user '{who}'");
            Err(Refusal::new(Code::NotFound, message, "see 'berth user ls'"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(label: &str) -> UserView {
        UserView {
            user: UserId::random(),
            label: label.to_owned(),
            created: jiff::Timestamp::UNIX_EPOCH,
            keys: Vec::new(),
            machines: 0,
            locked: None,
        }
    }

    #[test]
    fn a_user_is_named_by_id_or_by_a_label_of_their_own() {
        let users = [user("ann"), user("bob"), user("bob")];
        assert_eq!(choose(&users, "ann").unwrap(), users[0].user);
        assert_eq!(choose(&users, users[2].user.as_str()).unwrap(), users[2].user);
        assert_eq!(choose(&users, "bob").unwrap_err().code, Code::Conflict);
        assert_eq!(choose(&users, "eve").unwrap_err().code, Code::NotFound);
    }
}
