//! The three servers, and who logs in to them.

use crate::bare::Bare;
use anyhow::Result;
use berth_tests::{Remote, Scratch, Service, Settings, Sshd};

pub struct Servers {
    pub sshd: Sshd,
    pub bare: Bare,
    pub service: Service,
    /// In the order of the report's columns.
    pub remotes: [Remote; 3],
}

impl Servers {
    pub fn start(scratch: &Scratch) -> Result<Self> {
        eprintln!("starting sshd, a gateway without machines, and a service with one");
        let sshd = Sshd::start(scratch)?;
        let bare = Bare::start(scratch)?;
        let settings = Settings::default().set("machine.memory", "1G").set("service.log", "info");
        let service = Service::start(scratch, &settings)?;
        let account = service.account(scratch)?;
        account.verb("new main")?.ok()?;
        let remotes = [sshd.remote(scratch)?, bare.remote(scratch)?, account.at("main")];
        for remote in &remotes {
            remote.exec("true")?;
        }
        Ok(Self { sshd, bare, service, remotes })
    }

    pub fn machine(&self) -> &Remote {
        let [_, _, machine] = &self.remotes;
        machine
    }

    pub fn stop(&self) -> Result<()> {
        self.service.stop()?;
        self.bare.stop()?;
        self.sshd.stop()
    }
}
