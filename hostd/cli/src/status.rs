//! `berth status`: is everything well?

use crate::{api, context::Context, output};
use berth_api::{Reply, Request};
use berth_types::Refusal;

pub fn run(context: &Context) -> Result<(), Refusal> {
    let Reply::Status(status) = api::call(context, Request::Status)? else {
        return Err(api::unexpected());
    };
    if context.json {
        return output::json(&status);
    }
    let rows = [
        ["version".to_owned(), status.version],
        ["hypervisor".to_owned(), status.driver],
        ["machines".to_owned(), format!("{}, {} running", status.machines, status.running)],
        ["memory".to_owned(), format!("{} of {} given out", status.memory_committed, status.memory_limit)],
        ["pool".to_owned(), format!("{} of {} free", status.pool_free, status.pool_size)],
        ["connect with".to_owned(), context.ssh_line()],
    ];
    output::pairs(rows);
    Ok(())
}
