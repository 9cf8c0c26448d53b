//! The unprivileged user that the gateway becomes.

use berth_types::{Code, Refusal};
use nix::unistd::User;
use std::process::Command;

/// Makes it if it is missing.
pub fn ensure(name: &str) -> Result<(), Refusal> {
    let failed = |why: String| {
        let hint = "make it by hand or change gateway.user";
        Refusal::new(Code::Failed, format!("cannot make the gateway's user {name} ({why})"), hint)
    };
    if User::from_name(name).map_err(|error| failed(error.to_string()))?.is_some() {
        return Ok(());
    }
    let made = Command::new("/usr/sbin/useradd")
        .args(["--system", "--no-create-home", "--home-dir", "/nonexistent"])
        .args(["--shell", "/usr/sbin/nologin", "--user-group", "--", name])
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !made.status.success() {
        return Err(failed(String::from_utf8_lossy(&made.stderr).trim().to_owned()));
    }
    say!("berth: made the user {name} for the gateway");
    Ok(())
}
