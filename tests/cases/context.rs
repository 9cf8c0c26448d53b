//! What a case is given: machines to use, and what to look at when it fails.

use crate::egress;
use anyhow::{Context as _, Result, anyhow};
use berth_tests::{Account, Remote, Scratch, Service, Settings, Sshd};
use std::{
    collections::HashMap,
    env,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

pub struct Case {
    pub name: &'static str,
    pub needs: Needs,
    pub run: fn(&Context) -> Result<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// True of any SSH server, so OpenSSH's is a judge of the case itself.
    AnyServer,
    /// The service that all cases share.
    Service,
    /// A service that the case makes itself, because it breaks it.
    OwnService,
    /// The same, on Cloud Hypervisor: left out where there is none.
    CloudHypervisor,
}

/// Lists functions as cases, each under its own name.
#[macro_export]
macro_rules! cases {
    ($($needs:ident: $($run:ident),+ $(,)?);+ $(;)?) => {
        &[$($($crate::context::Case {
            name: stringify!($run),
            needs: $crate::context::Needs::$needs,
            run: $run,
        }),+),+]
    };
}

/// What is started at most once, or why it did not start.
type Once<T> = OnceLock<Result<T, String>>;

pub struct Context {
    /// Behind the services: it removes what they leave.
    service: Once<Service>,
    sshd: Once<Sshd>,
    egress: Once<egress::World>,
    is_sshd: bool,
    remotes: Mutex<HashMap<&'static str, Arc<Once<Remote>>>>,
    scratch: Scratch,
}

impl Context {
    pub fn new() -> Result<Self> {
        Ok(Self {
            service: OnceLock::new(),
            sshd: OnceLock::new(),
            egress: OnceLock::new(),
            is_sshd: env::var("BERTH_TEST_AGAINST").is_ok_and(|against| against == "sshd"),
            remotes: Mutex::default(),
            scratch: Scratch::new()?,
        })
    }

    pub fn is_sshd(&self) -> bool {
        self.is_sshd
    }

    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// The service that all cases share.
    pub fn service(&self) -> Result<&Service> {
        once(&self.service, || Service::start(&self.scratch, &Settings::default()))
    }

    /// Somebody that the shared service has never seen.
    pub fn account(&self) -> Result<Account> {
        self.service()?.account(&self.scratch)
    }

    /// The service of the egress cases, and the world that its machines reach.
    pub fn egress(&self) -> Result<&egress::World> {
        once(&self.egress, || egress::World::start(&self.scratch))
    }

    /// A running machine that the cases of one area share: each keeps to a
    /// directory of its own in it.
    pub fn remote(&self, area: &'static str) -> Result<Remote> {
        let place = {
            let mut remotes = self.remotes.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(remotes.entry(area).or_default())
        };
        once(&place, || {
            if self.is_sshd {
                return once(&self.sshd, || Sshd::start(&self.scratch))?.remote(&self.scratch);
            }
            let account = self.account()?;
            account.verb("new main")?.ok()?;
            Ok(account.at("main"))
        })
        .cloned()
    }

    /// A case with a service of its own; its logs come with the failure.
    pub fn with_service(&self, settings: &Settings, case: impl FnOnce(&Service) -> Result<()>) -> Result<()> {
        let service = Service::start(&self.scratch, settings)?;
        case(&service).with_context(|| service.logs())?;
        service.stop()
    }

    pub fn logs(&self) -> String {
        let own = self.service.get().and_then(|service| service.as_ref().ok()).map(Service::logs);
        let egress = self.egress.get().and_then(|world| world.as_ref().ok()).map(egress::World::logs);
        own.into_iter().chain(egress).collect()
    }

    /// Stops what was started in order; what is there afterwards was leaked.
    pub fn end(&self) -> Result<Vec<String>> {
        if let Some(Ok(service)) = self.service.get() {
            service.stop()?;
        }
        if let Some(Ok(world)) = self.egress.get() {
            world.stop()?;
        }
        if let Some(Ok(sshd)) = self.sshd.get() {
            sshd.stop()?;
        }
        self.scratch.left_behind()
    }
}

fn once<T>(place: &Once<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    let made = place.get_or_init(|| make().map_err(|error| format!("{error:#}")));
    made.as_ref().map_err(|error| anyhow!("{error}"))
}
