//! `berth upgrade-check`: whose memory would another hypervisor not resume?

use crate::{api, context::Context, output};
use berth_api::{Reply, Request};
use berth_hypervisor::select;
use berth_types::{Code, Refusal};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct UpgradeCheck {
    /// The program to be upgraded to [default: the one that the next start would use]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

pub fn run(context: &Context, arguments: UpgradeCheck) -> Result<(), Refusal> {
    let found = match &arguments.binary {
        Some(binary) => select::identify(&context.config.hypervisor, binary),
        None => select::select(&context.config.hypervisor)
            .map(|selected| (selected.driver.name(), selected.driver.version().to_owned())),
    };
    let (driver, version) =
        found.map_err(|error| Refusal::new(Code::Failed, error.to_string(), "see 'berth doctor'"))?;
    let request = Request::UpgradeCheck { driver: driver.to_owned(), version: version.clone() };
    let Reply::Stranded(stranded) = api::call(context, request)? else { return Err(api::unexpected()) };
    if context.json {
        return output::json(&stranded);
    }
    if stranded.is_empty() {
        show!("{driver} {version} can resume everything that there is");
        return Ok(());
    }
    show!("{driver} {version} could not resume these; they would boot from their disks:");
    let rows = stranded
        .into_iter()
        .map(|one| [one.owner, one.machine.to_string(), one.point, one.made_by, one.created.to_string()]);
    output::table(["USER", "MACHINE", "POINT", "MADE BY", "CREATED"], rows);
    say!("wake what is asleep and let it run over the upgrade, or tell its users");
    Ok(())
}
