//! `reboot`, `poweroff`, `halt` and `shutdown`, under which names the image
//! links to this program: they ask PID 1.

use std::io;

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Context, Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Reboot,
    PowerOff,
}

/// None: the name is not one of ours.
pub fn parse(name: &str, arguments: &[String]) -> Option<Ask> {
    let has = |wanted: &[&str]| arguments.iter().any(|argument| wanted.contains(&argument.as_str()));
    match name {
        "reboot" if has(&["-p", "--poweroff", "--halt"]) => Some(Ask::PowerOff),
        "reboot" => Some(Ask::Reboot),
        "poweroff" | "halt" if has(&["--reboot"]) => Some(Ask::Reboot),
        "poweroff" | "halt" => Some(Ask::PowerOff),
        "shutdown" if has(&["-r", "--reboot"]) => Some(Ask::Reboot),
        "shutdown" => Some(Ask::PowerOff),
        _ => None,
    }
}

pub fn run(name: &str, ask: Ask) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        let hint = io::Error::new(io::ErrorKind::PermissionDenied, format!("try sudo {name}"));
        return Err(Error::new("only root may", name, hint));
    }
    let signal = match ask {
        Ask::Reboot => Signal::TERM,
        Ask::PowerOff => Signal::USR2,
    };
    kill_process(Pid::INIT, signal).during("tell", "PID 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_flags_mean_what_they_do_elsewhere() {
        let ask = |line: &str| {
            let mut words = line.split(' ').map(str::to_owned);
            let name = words.next().unwrap();
            parse(&name, &words.collect::<Vec<_>>())
        };
        assert_eq!(ask("reboot"), Some(Ask::Reboot));
        assert_eq!(ask("reboot -f"), Some(Ask::Reboot));
        assert_eq!(ask("poweroff"), Some(Ask::PowerOff));
        assert_eq!(ask("shutdown -h now"), Some(Ask::PowerOff));
        assert_eq!(ask("shutdown -r now"), Some(Ask::Reboot));
        assert_eq!(ask("sftp"), None);
    }
}
